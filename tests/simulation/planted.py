"""The planted bugs: pieces of the package's source, and what a bad day would have made of them.

A mutant whose text is not in the source any more is an error: the list has to keep up with the package. Nothing of
the package is imported here, because nothing can be planted into a module that is imported already.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Change:
    """One place of the source."""

    module: str
    source: str
    planted: str

    def applied(self, text: str) -> str:
        if text.count(self.source) != 1:
            raise LookupError(f"{self.source!r} stands {text.count(self.source)} times in {self.module}")
        return text.replace(self.source, self.planted)


@dataclass(frozen=True)
class Needed:
    """A pause: of whom, and before which of its calls (see `incidents`)."""

    target: str
    operation: str


@dataclass(frozen=True)
class Mutant:
    """A bug. `also`: what else has to go, because one defence stands behind another. `needs`: the fault without
    which the bug changes nothing. `in_chains`: it shows only where batches are decided in chains, so it is hunted
    with those seeds. `has_two`: the same, where the sink has two destinations. `is_upgraded`: it shows only where
    workers of version 0.1 began. `changes_duration`: it shows only where the lease duration changes.
    `has_long_scans`: it shows only where scans take seconds. `kind`: of the scenarios, see `campaign.KINDS`."""

    name: str
    module: str
    source: str
    planted: str
    also: tuple[Change, ...] = ()
    needs: Needed | None = None
    in_chains: bool = False
    has_two: bool = False
    is_upgraded: bool = False
    changes_duration: bool = False
    has_long_scans: bool = False
    kind: str = "fleet"

    @property
    def changes(self) -> tuple[Change, ...]:
        return (Change(self.module, self.source, self.planted), *self.also)


_AWS: Final = "kcl_dagster.aws"
_PENDING: Final = "kcl_dagster.worker.pins"
_PARTS_CHAIN: Final = "kcl_dagster.worker.parts_chain"
_DEAD_LETTER_REPLAY: Final = "kcl_dagster.spark.dead_letter_replay"
_REQUESTS: Final = "kcl_dagster.tables.requests"
_COMPLETENESS_ROW: Final = "kcl_dagster.tables.completeness_row"
_COMPLETENESS: Final = "kcl_dagster.leader.application_completeness"
_OUTCOMES: Final = "kcl_dagster.tables.outcomes"
_SENDING: Final = "kcl_dagster.tables.sending"
_LEASES: Final = "kcl_dagster.tables.leases"
_ITEMS: Final = "kcl_dagster.tables.items"
_REGISTRY: Final = "kcl_dagster.worker.held_leases"
_WRITES: Final = "kcl_dagster.worker.lease_writes"
_CLAIMED: Final = "kcl_dagster.worker.claimed_leases"
_PROTOCOL: Final = "kcl_dagster.worker.protocol"
_READING: Final = "kcl_dagster.worker.reading"
_RANGES: Final = "kcl_dagster.worker.ranges"
_PARENTS: Final = "kcl_dagster.worker.parents"
_SHARD_END: Final = "kcl_dagster.worker.shard_end"
_RENEWAL: Final = "kcl_dagster.worker.renewal"
_POLLING: Final = "kcl_dagster.streams.polling"
_CUTTING: Final = "kcl_dagster.streams.cutting"
_POSITION: Final = "kcl_dagster.streams.position"
_TAKING: Final = "kcl_dagster.worker.taking"
_STANDING: Final = "kcl_dagster.model.standing"
_CHECKPOINT: Final = "kcl_dagster.model.checkpoint"
_WORKER: Final = "kcl_dagster.model.worker_row"
_EXPIRY: Final = "kcl_dagster.leader.expiry"
_HANDOFF: Final = "kcl_dagster.leader.handoff"
_OBSERVATION: Final = "kcl_dagster.leader.observation"
_MOVING: Final = "kcl_dagster.leader.moving"
_SYNCING: Final = "kcl_dagster.leader.sync_stage"
_SYNC: Final = "kcl_dagster.leader.sync"
_CLEANUP: Final = "kcl_dagster.leader.cleanup"
_LOCK: Final = "kcl_dagster.tables.lock"
_POLICIES: Final = "kcl_dagster.leader.assignment.policies"
_FLEET: Final = "kcl_dagster.leader.fleet"
_TABLE_READING: Final = "kcl_dagster.tables.lease_reader"
_SCAN_PACE: Final = "kcl_dagster.leader.scan_pace"
_STAGES: Final = "kcl_dagster.leader.stages"
_DELIVERY: Final = "kcl_dagster.worker.delivery"
_LATEST: Final = "kcl_dagster.worker.background_calls"
_PINNED: Final = "kcl_dagster.worker.pinned_leases"
_SPLIT: Final = "kcl_dagster.spark.sinks.rows_by_key"
_COORDINATION: Final = "kcl_dagster.tables.coordination"
_CHAIN: Final = "kcl_dagster.chains.chain"
_SETTLEMENT: Final = "kcl_dagster.chains.settlement"
_PUBLICATION: Final = "kcl_dagster.chains.publication"
_DELETION: Final = "kcl_dagster.chains.deletion"
_TABLE_COMMITS: Final = "kcl_dagster.chains.table_commits"
_CLAIMS: Final = "kcl_dagster.worker.claims"
_FORMER_CHAINS: Final = "kcl_dagster.worker.former_chains"
_CHAIN_PROTOCOL: Final = "kcl_dagster.worker.chain_protocol"
_CHAIN_STORE: Final = "kcl_dagster.chains.store"
_PUBLISHING: Final = "kcl_dagster.worker.publishing"
_TABLE_COMMITTER: Final = "kcl_dagster.worker.table_committer"

MUTANTS: Final = (
    # Conditions dropped
    Mutant(
        "writes of the owner are not conditional on the counter",
        _REQUESTS,
        '_update(table, lease.key).require_equal(a.COUNTER, "counter", n(lease.counter))',
        "_update(table, lease.key).require(_EXISTS)",
        also=(
            Change(
                _REQUESTS,
                '    return update.require(f"({a.OWNER} = :me OR {a.CHECKPOINT_OWNER} = :me)", {":me": s(owner)})',
                "    return update",
            ),
        ),
    ),
    Mutant(
        "moves are not conditional on the owners",
        _REQUESTS,
        """    update.require_equal(a.OWNER, "owner", s(lease.owner) if lease.owner is not None else None)
    previous = s(lease.checkpoint_owner) if lease.checkpoint_owner is not None else None
    return update.require_equal(a.CHECKPOINT_OWNER, "handingOver", previous)""",
        "    return update",
    ),
    Mutant(
        "leases are taken without regard to the counter that stood",
        _MOVING,
        "moved = self._leases.assign(lease, move.to, counter=lease.counter)",
        "moved = self._leases.assign(lease, move.to)",
    ),
    Mutant(
        "a lease that exists is created again",
        _REQUESTS,
        'lease_to_item(lease), "attribute_not_exists(#key)")',
        'lease_to_item(lease), "attribute_not_exists(#key) OR attribute_exists(#key)")',
    ),
    Mutant(
        "taking does not raise the counter",
        _REQUESTS,
        "update.set({a.OWNER: s(to)}).remove(a.CHECKPOINT_OWNER).add_one(a.COUNTER)",
        "update.set({a.OWNER: s(to)}).remove(a.CHECKPOINT_OWNER)",
    ),
    Mutant(
        "a handoff is begun while another is under way",
        _REQUESTS,
        '    update.require_equal(a.OWNER, "owner", s(lease.owner))\n'
        '    update.require_equal(a.CHECKPOINT_OWNER, "checkpointOwner", None)\n'
        "    return update.set({a.OWNER: s(to), a.CHECKPOINT_OWNER: s(lease.owner)})"
        ".copy(a.COUNTER, a.HANDOFF).request()",
        "    return update.set({a.OWNER: s(to), a.CHECKPOINT_OWNER: s(lease.owner)})"
        ".copy(a.COUNTER, a.HANDOFF).request()",
    ),
    # Lost answers
    Mutant(
        "an owner catches up with whatever stands in the table",
        _LEASES,
        "if now is None or not is_behind(known, now):",
        "if now is None:",
    ),
    Mutant(
        "a renewal is taken for ours whoever owns the lease",
        _OUTCOMES,
        "return now.actual_owner == before.actual_owner and now.counter == before.counter + 1",
        "return now.counter == before.counter + 1",
    ),
    Mutant(
        "a lease that could not be pinned stays in its batch",
        _PROTOCOL,
        "        return [progress for key, progress in read.items() if key not in refused]",
        "        return list(read.values())",
    ),
    Mutant(
        "a call is not bounded by the clock",
        _AWS,
        "TOTAL_SECONDS: Final = CONNECT_SECONDS + READ_SECONDS",
        "TOTAL_SECONDS: Final = 86_400.0",
    ),
    # The batch protocol
    Mutant(
        "the sink is written before the pin",
        _PROTOCOL,
        "        if progress.range.is_pinned:\n            # The response",
        "        if progress:\n            return\n            # The response",
    ),
    Mutant(
        "the checkpoint moves before the sink is written",
        _PROTOCOL,
        "        if ours and self._write(this, fetched, ours, abandon):\n",
        "        self._commit(this, ours)\n"
        "        if ours and self._write(this, fetched, ours, abandon):\n            return\n",
    ),
    Mutant(
        "a pinned batch is not redone exactly",
        _RANGES,
        "            through, number, first = lease.pending_checkpoint, pin.number, pin.first",
        "            through, number, first = None, pin.number, pin.first",
    ),
    Mutant(
        "the batch number does not grow",
        _RANGES,
        "number, first, instead_of = lease.batch + 1 if lease.batch else self.first_number(), None, None",
        "number, first, instead_of = lease.batch if lease.batch else self.first_number(), None, None",
    ),
    Mutant(
        "a batch that failed is committed",
        _PROTOCOL,
        "            self._failed(this, fetched, found, error)\n            return False",
        "            self._failed(this, fetched, found, error)\n            return True",
    ),
    Mutant(
        "the checkpoint keeps the pin",
        _REQUESTS,
        "    update.set(stream_values(lease))\n"
        "    return update.remove(a.PENDING, a.PENDING_SUB, a.PENDING_STATE).request()",
        "    update.set(stream_values(lease))\n    return update.request()",
        also=(
            Change(
                _PENDING,
                "    if lease.checkpoint is not None and lease.pending_checkpoint <= lease.checkpoint:",
                "    if lease.checkpoint is None:",
            ),
        ),
    ),
    Mutant(
        "records that were already processed are not left out",
        _POSITION,
        "return (int(sequence), sub_sequence) <= (int(self.after.sequence), self.after.sub_sequence)",
        "return (int(sequence), sub_sequence) < (int(self.after.sequence), self.after.sub_sequence)",
    ),
    Mutant(
        "checkpoints are compared by their last digits",
        _CHECKPOINT,
        "return (0, int(self.sequence), self.sub_sequence)",
        "return (0, int(self.sequence[::-1]), self.sub_sequence)",
    ),
    # Reading
    Mutant(
        "a range begins after its checkpoint's successor",
        _POSITION,
        'return {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": record}',
        'return {"ShardIteratorType": "LATEST"}',
    ),
    Mutant(
        "an expired iterator is replaced by one at the tip",
        _POLLING,
        "                self._iterator, self._failures = None, 1  # if",
        '                place = {"StreamName": self._stream, "ShardId": self._shard_id}\n'
        '                place["ShardIteratorType"] = "LATEST"\n'
        '                self._iterator = call(self._client, "get_shard_iterator", **place)["ShardIterator"]\n'
        "                self._failures = 1  # if",
    ),
    Mutant(
        "the last page of a pinned range is not cut",
        _CUTTING,
        """        mine = [record for record in page if int(record["SequenceNumber"]) <= end]""",
        "        mine = page",
    ),
    # Parents and children
    Mutant(
        "children do not wait for their parents",
        _PARENTS,
        "            is_unfinished = found is not None and not found.is_finished",
        "            is_unfinished = found is not None and found.counter < 0",
    ),
    Mutant(
        "one finished parent of a merge is enough",
        _PARENTS,
        "        for parent in parent_keys(lease):",
        "        for parent in parent_keys(lease)[:1]:",
    ),
    Mutant(
        "a shard is finished without leases for its children",
        _SHARD_END,
        "            self._table.create_child(lease, wanted, names)",
        "            assert wanted",
    ),
    Mutant(
        "only the first child of a split gets a lease",
        _SHARD_END,
        "        for child in children:\n            wanted",
        "        for child in children[:1]:\n            wanted",
    ),
    Mutant(
        "a merged shard may start before its other parent is known",
        _SHARD_END,
        "            self._check_other_parents(lease, child, progress)",
        "            pass",
    ),
    Mutant(
        "children begin at the tip",
        _SHARD_END,
        "from kcl_dagster.model.checkpoint import TRIM_HORIZON",
        "from kcl_dagster.model.checkpoint import LATEST as TRIM_HORIZON",
    ),
    Mutant(
        "SHARD_END is written with records left",
        _PROTOCOL,
        "if not (progress.ended and self._finish(this, progress))]",
        "if not (progress.millis_behind and self._finish(this, progress))]",
    ),
    Mutant(
        "the first sync looks at open shards only",
        _SYNCING,
        "            return plan_first_sync(opened, start.position, identifier, start.counted_since)",
        "            opened = [shard for shard in self._streams.shards(name) if shard.is_open]\n"
        "            return plan_first_sync(opened, start.position, identifier, start.counted_since)",
    ),
    Mutant(
        "a finished lease is deleted before its children have begun",
        _CLEANUP,
        "done = all(child in held and has_started(held[child]) for child in known)",
        "done = all(child in held for child in known)",
    ),
    # Time
    Mutant(
        "leases expire as soon as they are looked at",
        _EXPIRY,
        "    if stood > duration:",
        "    if stood > duration / 10:",
    ),
    Mutant(
        "a version stands from the beginning of time",
        _STANDING,
        "            self._sightings[key] = _Sighting(version, 0.0, read_ended, read_started)",
        "            self._sightings[key] = _Sighting(version, 0.0, 0.0, read_started)",
    ),
    Mutant(
        "a version that changed is taken for the same",
        _STANDING,
        "        if known is None or known.version != version:\n            self._sightings",
        "        if known is None:\n            self._sightings",
    ),
    Mutant(
        "workers without a leader judge leases by their own duration alone",
        _TAKING,
        "lease_durations(leases.values(), scan.workers, self._rules.lease_duration)",
        "lease_durations(leases.values(), (), self._rules.lease_duration)",
        changes_duration=True,
    ),
    Mutant(
        "a leader leaves out reads for many lease durations",
        _SCAN_PACE,
        "READS_PART, self.lease_duration * LONGEST_PART)\n        self.due = started + min(pause, soonest)",
        "READS_PART, 1e9)\n        self.due = started + 100 * pause",
        has_long_scans=True,
    ),
    Mutant(
        "a long read leaves no time to decide",
        _STAGES,
        "        self.deadline = max(self.deadline, min(least, self.started + _LATEST_END))\n",
        "",
        has_long_scans=True,
    ),
    Mutant(
        "the run of a worker nobody knows counts as over",
        _OBSERVATION,
        "        return frozenset(runs.finished(sorted(asked))) & asked if asked else frozenset()",
        "        return frozenset(asked)",
    ),
    # Fences
    Mutant(
        "a lease is trusted for longer than it takes others to take it",
        _WRITES,
        "        held.trusted_until = sent + self.duration\n",
        "        held.trusted_until = sent + 3 * self.duration\n",
    ),
    Mutant(
        "nobody asks whether a lease is held still before the sink is written",
        _READING,
        "            if self.holdings.is_ours(key, this.holdings[key].token):\n                ours",
        "            if key:\n                ours",
    ),
    Mutant(
        "what is delivered is counted when nobody writes the lease",
        _REGISTRY,
        "        with self.map_lock:\n            self._throughput.record(key, payload_bytes)\n",
        "        held = self._held.get(key)\n"
        "        if held is not None:\n"
        "            with held.lock:\n"
        "                self._throughput.record(key, payload_bytes)\n",
    ),
    Mutant(
        "the leader lock is taken from whoever holds it",
        _LOCK,
        "row.is_released or stood > row.duration or",
        "row.is_released or stood >= 0 or",
    ),
    # Handoffs and the fleet
    Mutant(
        "the old owner never completes a handoff",
        _RENEWAL,
        "        return list(dict.fromkeys(at_rest + overdue))",
        "        return list(dict.fromkeys(at_rest + overdue))[:0]",
    ),
    Mutant(
        "handoffs are forced at once",
        _HANDOFF,
        "stood >= self.timeout + self.notice",
        "stood >= 0",
    ),
    Mutant(
        "a lease in handoff is acquired",
        _WRITES,
        "        if lease.owner != self.worker or lease.in_handoff:\n            self._expired",
        "        if lease.owner != self.worker:\n            self._expired",
    ),
    Mutant(
        "a worker that lost a lease goes on renewing it",
        _WRITES,
        "            self.drop(held, str(lost))\n            raise",
        "            held.lease = self.table.get(held.lease.key) or held.lease\n            raise",
    ),
    Mutant(
        "two processes of one slot share a name",
        _WORKER,
        'return WorkerId(f"{slot}:{run_id[:8]}")',
        "return WorkerId(slot)",
    ),
    Mutant(
        "finished handoffs leave the giver in the row",
        _REQUESTS,
        "    update.set({a.OWNER: s(to)}).remove(a.CHECKPOINT_OWNER).add_one(a.COUNTER)",
        "    update.set({a.OWNER: s(to)}).add_one(a.COUNTER)",
    ),
    # Found only since operators, rights and user code are simulated
    Mutant(
        "a child's lease is made whatever became of its parent",
        _REQUESTS,
        "    note = _update(table, parent).require(_EXISTS)\n"
        '    note.require(f"{a.CHECKPOINT} <> :end", {":end": s(SHARD_END.sequence)})'
        ".set({a.CHILDREN: names(children)})\n"
        "    return guarded(create(table, child), note.request())",
        "    if parent and children:\n        return create(table, child)\n    return create(table, child)",
        needs=Needed("worker", "creates a lease"),
    ),
    Mutant(
        "a leader that resigns deletes the lock of another one",
        _COORDINATION,
        '        f"{PRESENT} AND {LOCK_VERSION} = :held AND {LOCK_OWNER} = :owner",\n'
        '        {":held": s(held), ":owner": s(owner)},',
        "        PRESENT if held and owner else PRESENT,\n        None,",
        needs=Needed("daemon", "releases the leader lock"),
    ),
    Mutant(
        "work begun under one ownership is finished under another",
        _REGISTRY,
        "        return held is not None and held.token == token and self.is_trusted(held)",
        "        return held is not None and token > 0 and self.is_trusted(held)",
        also=(
            Change(
                _REGISTRY,
                "        if held is None or (token is not None and held.token != token):",
                "        if held is None or (token is not None and token < 0):",
            ),
            Change(
                _WRITES,
                "        if self._held.get(key) is not held or (token is not None and held.token != token):",
                "        if self._held.get(key) is not held or (token is not None and token < 0):",
            ),
        ),
    ),
    Mutant(
        "a pin does not name its first record",
        _PROTOCOL,
        "Pin(progress.range.number, progress.first, instead_of, losses, code, arrived=arrived)",
        "Pin(progress.range.number, None, instead_of, losses, code, arrived=arrived)",
    ),
    Mutant(
        "a missing index is logged at every look",
        _TABLE_READING,
        "self._clock.monotonic() + INDEX_RECHECK_SECONDS",
        "self._clock.monotonic() + 0 * INDEX_RECHECK_SECONDS",
    ),
    Mutant(
        "leases are made in an emptied table without a protocol",
        _STAGES,
        "if view.held and not is_declared:",
        "if not (view.held or is_declared):",
    ),
    Mutant(
        "a leader creates leases without the lock's guard",
        _SYNCING,
        "        guard = self._guard() if self._guard is not None and plan.creates else None",
        "        guard = self._guard() if self._guard is not None and not plan.creates else None",
        needs=Needed("daemon", "creates a lease"),
    ),
    Mutant(
        "a lease that is made again counts its batches from 1",
        _RANGES,
        "lease.batch + 1 if lease.batch else self.first_number(), None, None",
        "lease.batch + 1, None, None",
    ),
    Mutant(
        "a row whose partition value is null is dropped",
        _SPLIT,
        '        for code in np.argsort(firsts, kind="stable")\n',
        '        for code in np.argsort(firsts, kind="stable")\n'
        "        if None not in _key(keys, int(firsts[code]))\n",
        in_chains=True,
    ),
    Mutant(
        "a batch that a former version has begun is taken for stored",
        _PINNED,
        "part.through if key in this.unread else self.parts.stored_to(part)",
        "part.through",
        in_chains=True,
    ),
    Mutant(
        "a batch that a former version has begun is not looked up",
        _PINNED,
        "part.through if key in this.unread else self.parts.stored_to(part)",
        "part.through if key in this.unread else None",
        in_chains=True,
        is_upgraded=True,
    ),
    Mutant(
        "events are written on the thread on which they happen",
        _DELIVERY,
        "                self._waiting.append(_Waiting(kind, call))",
        "                call()",
    ),
    Mutant(
        "runs are looked up on the thread that keeps house",
        _LATEST,
        "                self._start(self._find_out)",
        "                self._find_out()",
    ),
    Mutant(
        "a run that waits in the queue has the slot of a living worker",
        _OBSERVATION,
        "run.run_id == seen.row.run_id or run.run_id not in up:",
        "run.run_id == seen.row.run_id:",
        also=(
            Change(
                _FLEET,
                "        foreign = _by_slot(sight.workers, own)",
                "        foreign = _by_slot((), own)",
            ),
        ),
    ),
    Mutant(
        "a worker drains before its successor can read",
        _FLEET,
        "        return slot in self._workers and self._workers[slot].ready",
        "        return slot in self._workers",
    ),
    Mutant(
        "by the KCL's rules, leases go to workers that cannot read yet",
        _POLICIES,
        "        return ReadersFirst(Variance(random.shuffle))",
        "        return Variance(random.shuffle)",
    ),
    Mutant(
        "a reset keeps the pin",
        _REQUESTS,
        "    update.set(checkpoint_values(checkpoint))\n"
        "    update.remove(a.PENDING, a.PENDING_SUB, a.PENDING_STATE, a.STORED_THROUGH)",
        "    update.set(checkpoint_values(checkpoint))\n    update.remove(a.STORED_THROUGH)",
    ),
    # Through when everything is stored
    Mutant(
        "an unfinished parent does not hold the application back",
        _COMPLETENESS,
        "            if lease.is_finished:\n                continue",
        "            if lease.is_finished or any(lease.shard_id in one.parents for one in group):\n"
        "                continue",
    ),
    Mutant(
        "a shard that was not read yet does not hold the application back",
        _COMPLETENESS,
        "            if stored is None:\n                return Completeness(held_by=held_by)",
        "            if stored is None:\n                continue",
    ),
    Mutant(
        "a shard that is stopped or has no worker does not hold the application back",
        _COMPLETENESS,
        "            if lease.is_finished:\n                continue",
        "            if lease.is_finished or lease.key in hindered:\n                continue",
    ),
    Mutant(
        "a lease that is missing is not missed",
        _COMPLETENESS,
        "        if held_by is not None:\n            return Completeness(held_by=held_by)",
        "        if not group:\n            return Completeness(held_by=held_by)",
        also=(
            # It is made again within a tick, without a moment.
            Change(
                _SYNCING,
                "        asks = (hole is not None or bool(finished - state.synced_finished))",
                "        asks = bool(finished - state.synced_finished)",
            ),
        ),
    ),
    Mutant(
        "a reset leaves through when its shards are stored",
        _REQUESTS,
        "    update.remove(a.PENDING, a.PENDING_SUB, a.PENDING_STATE, a.STORED_THROUGH)",
        "    update.remove(a.PENDING, a.PENDING_SUB, a.PENDING_STATE)",
    ),
    Mutant(
        "a shard counts as stored through now whatever was read of it",
        _READING,
        "        is_at_tip = progress.millis_behind == 0 and progress.through is None",
        "        is_at_tip = True",
    ),
    Mutant(
        "a worker tells by its own clock through when an idle shard is stored",
        "kcl_dagster.worker.loop",
        "        self._service_time = surroundings.service_time or runtime.clock.now",
        "        self._service_time = runtime.clock.now",
    ),
    Mutant(
        "what is stored is counted again when the answer to its commit is lost",
        _LEASES,
        "    if counts is None or known.checkpoint == checkpoint:",
        "    if counts is None:",
        # Else a commit that is found in the row is not written again.
        also=(
            Change(
                _SENDING,
                "return Applied(item) if verdict is WriteVerdict.APPLIED else Refused(item)",
                "return Refused(item)",
            ),
        ),
    ),
    Mutant(
        "the moment of completeness may fall",
        _COMPLETENESS_ROW,
        'AND (attribute_not_exists({THROUGH}) OR {THROUGH} < :{THROUGH})"',
        '"',
    ),
    # Rows
    Mutant(
        "a new lease lacks the count of its owners",
        _ITEMS,
        "    item[a.SWITCHES] = n(lease.owner_switches)\n",
        "",
    ),
    Mutant(
        "hash keys are written as numbers",
        _ITEMS,
        "return {a.HASH_START: s(str(hash_range.start)), a.HASH_END: s(str(hash_range.end))}",
        "return {a.HASH_START: n(hash_range.start), a.HASH_END: n(hash_range.end)}",
    ),
    # Batches in chains
    Mutant(
        "a batch is decided for leases that were given away",
        _CLAIMS,
        "entry = None if refused else chain.decide(",
        "entry = chain.decide(",
        in_chains=True,
    ),
    Mutant(
        "a chain is closed without a look at its entries",
        _SETTLEMENT,
        "        last = numbers[-1] if numbers else 0\n",
        "        last = 0\n",
        also=(
            Change(
                _SETTLEMENT,
                "        entries.create(chain, last + 1, closing)\n",
                "        entries.create(chain, last + 1, closing)\n        return\n",
            ),
        ),
        in_chains=True,
    ),
    Mutant(
        "files are published before their batch is decided",
        _CLAIMS,
        "entry = None if refused else chain.decide(",
        "entry = None if refused or self.publisher.publish(chain.id, 0, staged) else chain.decide(",
        in_chains=True,
    ),
    Mutant(
        "a checkpoint is written before its batch is decided",
        _CHAIN_PROTOCOL,
        "            tokens[key] = this.holdings[key].token\n",
        "            tokens[key] = this.holdings[key].token\n"
        "            place = progress.through or progress.range.after\n"
        "            self.holdings.claims.stored(key, tokens[key], Unwritten(place))\n",
        in_chains=True,
    ),
    Mutant(
        "checkpoints do not wait until the table contains what they say",
        _CLAIMED,
        "            held.unpublished.append(Unpublished(number, stored))",
        "            held.add_stored(stored)",
        in_chains=True,
    ),
    Mutant(
        "an entry is committed twice",
        _TABLE_COMMITS,
        "        reached, modified = last or 0, 0.0\n",
        "        reached, modified = max(0, (last or 0) - 1), 0.0\n",
        in_chains=True,
    ),
    Mutant(
        "a plan forgets a chain with its last entry",
        _TABLE_COMMITS,
        "KEPT_SECONDS: Final = 3600.0",
        "KEPT_SECONDS: Final = 0.0",
        # Most entries that are made again are not the first ones, and it is known that they mean nothing.
        also=(Change(_DELETION, "        if not is_passed_over:\n", "        if chain:\n"),),
        in_chains=True,
    ),
    Mutant(
        "a commit leaves an entry out",
        _TABLE_COMMITS,
        "    taken = tuple(one for _, one in new[:most])\n",
        "    taken = tuple(one for _, one in new[len(new) > 1 : most])\n",
        in_chains=True,
    ),
    Mutant(
        "a settlement leaves the last entry out",
        _SETTLEMENT,
        "        for number in entries.numbers(chain)\n",
        "        for number in entries.numbers(chain)[:-2]\n",
        in_chains=True,
    ),
    Mutant(
        "of two former owners, one is settled",
        _FORMER_CHAINS,
        "        found = self._settled.get(chain)\n",
        "        found = next(iter(self._settled.values()), None)\n",
        in_chains=True,
    ),
    Mutant(
        "an entry whose answer was lost counts as not made",
        _CHAIN,
        "return found.attempt == entry.attempt  #",
        "return False  #",
        in_chains=True,
    ),
    Mutant(
        "an entry whose answer was lost counts as made",
        _CHAIN,
        "return found.attempt == entry.attempt  #",
        "return True  #",
        in_chains=True,
    ),
    Mutant(
        "the last entry of a chain is deleted",
        _CHAIN,
        "if self._waiting[number] or number == self._last or",
        "if self._waiting[number] or",
        in_chains=True,
    ),
    Mutant(
        "a claim is ended while an entry is made",
        _CLAIMED,
        "        if held.claimed is None or held.is_deciding or held.unpublished:\n            return",
        "        if held.claimed is None or held.unpublished:\n            return",
        in_chains=True,
    ),
    Mutant(
        "what a settled chain has stored is read again",
        _FORMER_CHAINS,
        "    if settlement is None or lease.claim is None",
        "    if settlement is not None or lease.claim is None",
        in_chains=True,
    ),
    Mutant(
        "what was staged and not decided remains",
        _PUBLICATION,
        "        self.files.delete(sorted(left))\n",
        "        self.files.delete(sorted(left)[:0])\n",
        in_chains=True,
        also=(
            Change(
                _PUBLICATION,
                "        self.files.delete(left_behind(self.files, beginning, before, known))",
                "        left_behind(self.files, beginning, before, known)",
            ),
        ),
    ),
    Mutant(
        "chains that were closed remain",
        _DELETION,
        "        if is_closed or is_passed_over:\n",
        "        if not is_closed and not deleted:\n",
        in_chains=True,
    ),
    # Several destinations
    Mutant(
        "files are published in the first folder only",
        _PUBLISHING,
        "        for name, folder in self.folders.items():\n            try:\n",
        "        for name, folder in list(self.folders.items())[:1]:\n            try:\n",
        has_two=True,
    ),
    Mutant(
        "a commit is made to the first of its tables only",
        _TABLE_COMMITTER,
        "        for name in plan.tables:\n            table",
        "        for name in plan.tables[:1]:\n            table",
        has_two=True,
    ),
    Mutant(
        "an entry counts as visible when one destination has it",
        _PUBLISHING,
        "        return min(publisher.visible(chain)",
        "        return max(publisher.visible(chain)",
        has_two=True,
    ),
    Mutant(
        "a commit counts as carried out when one table contains it",
        _TABLE_COMMITTER,
        "        if not all(self._committed(name, plan.place) >= number",
        "        if not any(self._committed(name, plan.place) >= number",
        has_two=True,
    ),
    Mutant(
        "a chain is settled in the first folder only",
        _PUBLISHING,
        "        for name, folder in self.folders.items():\n            folder.settle(",
        "        for name, folder in list(self.folders.items())[:1]:\n            folder.settle(",
        has_two=True,
    ),
    Mutant(
        "a chain is settled in the folder only, and not in the table",
        _PUBLISHING,
        "        if self.committer is not None:\n            self.committer.settle(",
        "        if self.committer is not None and not self.folders:\n            self.committer.settle(",
        has_two=True,
    ),
    Mutant(
        "further destinations of an entry are lost when it is read again",
        _CHAIN_STORE,
        "else decoded(content, ",
        "else decoded(content.replace(b'\"others\"', b'\"lost\"'), ",
        has_two=True,
    ),
    Mutant(
        "an entry without files for the first destination is not committed",
        _TABLE_COMMITTER,
        "for one, entry in found if any(entry.of(name).files for name in tables)),",
        "for one, entry in found if entry.files),",
        has_two=True,
    ),
    Mutant(
        "the plans begin again at numbers that a table contains",
        _TABLE_COMMITTER,
        "        number, name = max((number, name) for name, number in numbers.items())\n",
        "        number, name = 0, FIRST\n",
        needs=Needed("", "makes a table anew"),
        has_two=True,
        also=(
            Change(
                _TABLE_COMMITTER,
                "        if number > newest:\n",
                "        if number < 0:\n",
            ),
        ),
    ),
    Mutant(
        "the last commit of a worker that has stopped is looked up in a table that was made anew since",
        _TABLE_COMMITTER,
        "        if plan is not None and plan.entries and self._is_carried_out(number, plan):\n            self._r",
        "        if number < 0 and plan is not None:\n            self._r",
        needs=Needed("", "makes a table anew"),
        has_two=True,
    ),
    Mutant(
        "what a replay has stored before is stored again",
        _PARTS_CHAIN,
        "            self._stored |= {(one.lease, one.number) for one in entry.ranges if one.number is not None}\n",
        "",
        kind="replays",
    ),
    Mutant(
        "what a killed replay has decided is not published",
        _PARTS_CHAIN,
        "                self._publisher.publish(chain, last, newest)\n",
        "                pass\n",
        kind="replays",
    ),
    Mutant(
        "what a killed replay has decided is not committed",
        _PARTS_CHAIN,
        "            self._publisher.finish({chain: last})\n",
        "",
        kind="replays",
    ),
    Mutant(
        "a batch of a replay that was refused counts as stored",
        _PARTS_CHAIN,
        "                raise self._is_another_at_work()\n            self._publisher.publish",
        "                self._stored |= {(part.lease, part.number) for part in batch.parts}\n"
        "                return\n            self._publisher.publish",
        kind="replays",
    ),
    Mutant(
        "what a paused replay has staged is removed, and it may decide it",
        _PARTS_CHAIN,
        "        if chain.decide((), ()) is None:\n            raise self._is_another_at_work()\n",
        "",
        kind="replays",
    ),
    Mutant(
        "dead letters are listed before the chain is read",
        _DEAD_LETTER_REPLAY,
        "        return self.sink.open()\n",
        "        return True\n",
        kind="replays",
    ),
    Mutant(
        "a note of letters that are gone fails every replay",
        _DEAD_LETTER_REPLAY,
        "            content = found_content(self.store, name) if self.knows_numbers else self.store.get(name)\n",
        "            content = self.store.get(name)\n",
        kind="replays",
    ),
    Mutant(
        "a lost answer to the entry of a replay counts as a refusal",
        _CHAIN,
        "return found.attempt == entry.attempt  #",
        "return False  #",
        kind="replays",
    ),
    Mutant(
        "the entry of another replay counts as one's own",
        _CHAIN,
        "return found.attempt == entry.attempt  #",
        "return True  #",
        kind="replays",
    ),
)
