"""`python -m tests.simulation.mutants`: the simulator has to find every one of these planted bugs.

Each is a piece of the package's source and what a bad day would have made of it. It is planted while the module is
imported, in a process of its own; nothing on disk changes. A mutant whose text is not in the source any more is an
error: the list has to keep up with the package.
"""

import argparse
import importlib.abc
import importlib.machinery
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Final

# Every planted bug is to be found within this many seeds.
MOST_SEEDS: Final = 60


@dataclass(frozen=True)
class Mutant:
    name: str
    module: str
    source: str
    planted: str

    def applied(self, text: str) -> str:
        if text.count(self.source) != 1:
            raise LookupError(f"{self.name}: its text stands {text.count(self.source)} times in {self.module}")
        return text.replace(self.source, self.planted)


_REQUESTS: Final = "kcl_dagster.tables.requests"
_OUTCOMES: Final = "kcl_dagster.tables.outcomes"
_SENDING: Final = "kcl_dagster.tables.sending"
_ITEMS: Final = "kcl_dagster.tables.items"
_HOLDINGS: Final = "kcl_dagster.worker.holdings"
_PROTOCOL: Final = "kcl_dagster.worker.protocol"
_READING: Final = "kcl_dagster.worker.reading"
_RANGES: Final = "kcl_dagster.worker.ranges"
_PARENTS: Final = "kcl_dagster.worker.parents"
_SHARD_END: Final = "kcl_dagster.worker.shard_end"
_RENEWAL: Final = "kcl_dagster.worker.renewal"
_POLLING: Final = "kcl_dagster.streams.polling"
_POSITION: Final = "kcl_dagster.streams.position"
_STANDING: Final = "kcl_dagster.model.standing"
_CHECKPOINT: Final = "kcl_dagster.model.checkpoint"
_WORKER: Final = "kcl_dagster.model.worker"
_EXPIRY: Final = "kcl_dagster.leader.expiry"
_HANDOFF: Final = "kcl_dagster.leader.handoff"
_OBSERVATION: Final = "kcl_dagster.leader.observation"
_MOVING: Final = "kcl_dagster.leader.moving"
_LIVENESS: Final = "kcl_dagster.leader.liveness"
_SYNCING: Final = "kcl_dagster.leader.syncing"
_SYNC: Final = "kcl_dagster.leader.sync"
_CLEANUP: Final = "kcl_dagster.leader.cleanup"

MUTANTS: Final = (
    # Conditions dropped
    Mutant(
        "writes of the owner are not conditional on the counter",
        _REQUESTS,
        '_update(table, lease.key).require_equal(a.COUNTER, "counter", n(lease.counter))',
        "_update(table, lease.key).require(_EXISTS)",
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
        "    return update.set({a.OWNER: s(to), a.CHECKPOINT_OWNER: s(lease.owner)}).request()",
        "    return update.set({a.OWNER: s(to), a.CHECKPOINT_OWNER: s(lease.owner)}).request()",
    ),
    # Lost answers
    Mutant(
        "a write whose answer was lost counts as done",
        _SENDING,
        "                in_doubt = problem = lost\n",
        "                return Applied(None)\n",
    ),
    Mutant(
        "a pin is taken for ours by the counter alone",
        _OUTCOMES,
        "applied = pin == (now.pending_checkpoint, now.pending_state, now.batch) and not was_there_before",
        "applied = True",
    ),
    # The batch protocol
    Mutant(
        "the sink is written before the pin",
        _PROTOCOL,
        "        if pin_of(holding.lease) is not None and progress.range.is_pinned:\n            return True",
        "        if pin:\n            return True",
    ),
    Mutant(
        "the checkpoint moves before the sink is written",
        _PROTOCOL,
        "        if ours and self._write(this, fetched, ours, abandon):\n",
        "        for progress in ours:\n"
        "            self._commit(this, progress)\n"
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
        "            number, first = lease.batch + 1, None",
        "            number, first = max(lease.batch, 1), None",
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
    ),
    Mutant(
        "records that were already processed are not left out",
        _POSITION,
        "return (int(sequence), sub_sequence) <= (int(self.after.sequence), self.after.sub_sequence)",
        "return (int(sequence), sub_sequence) < (int(self.after.sequence), self.after.sub_sequence)",
    ),
    Mutant(
        "checkpoints are compared as text",
        _CHECKPOINT,
        "return (0, int(self.sequence), self.sub_sequence)",
        "return (0, self.sequence[::-1], self.sub_sequence)",
    ),
    # Reading
    Mutant(
        "a range begins after its checkpoint's successor",
        _POSITION,
        'return {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": record}',
        'return {"ShardIteratorType": "LATEST"}',
    ),
    # Parents and children
    Mutant(
        "children do not wait for their parents",
        _PARENTS,
        "            if found is not None and not found.is_finished:",
        "            if found is not None and found.counter < 0:",
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
        "            self._table.create(child_lease(lease, child))",
        "            child_lease(lease, child)",
    ),
    Mutant(
        "only the first child of a split gets a lease",
        _SHARD_END,
        "        for child in children:\n            self._table.create",
        "        for child in children[:1]:\n            self._table.create",
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
        "        checkpoint=TRIM_HORIZON,",
        "        checkpoint=LATEST,",
    ),
    Mutant(
        "SHARD_END is written with records left",
        _PROTOCOL,
        "            if progress.ended and self._finish(this, progress):",
        "            if progress.millis_behind and self._finish(this, progress):",
    ),
    Mutant(
        "the first sync looks at open shards only",
        _SYNCING,
        "            return plan_first_sync(opened, start.position, identifier)",
        "            opened = [shard for shard in self._streams.shards(name) if shard.is_open]\n"
        "            return plan_first_sync(opened, start.position, identifier)",
    ),
    Mutant(
        "a lease is deleted before its children have begun, and before it is finished",
        _CLEANUP,
        "        if not lease.is_finished:\n            continue",
        "        if not lease.is_finished and not lease.children:\n            continue",
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
        "what another leader wrote down is believed of any version",
        _STANDING,
        "            elif known.version == version:\n                known.improve(seconds, at)",
        "            else:\n                known.improve(seconds, at)",
    ),
    Mutant(
        "the run of a worker nobody knows counts as over",
        _OBSERVATION,
        "        return frozenset(runs.finished(sorted(asked))) & asked if asked else frozenset()",
        "        return frozenset(asked)",
    ),
    # Handoffs and the fleet
    Mutant(
        "the old owner never completes a handoff",
        _RENEWAL,
        "        return list(dict.fromkeys(at_rest + overdue))",
        "        return list(dict.fromkeys(at_rest + overdue))[:0]",
    ),
    Mutant(
        "a lease in handoff is acquired",
        _HOLDINGS,
        "        if lease.owner != self._worker or lease.in_handoff:\n            return None",
        "        if lease.owner != self._worker:\n            return None",
    ),
    Mutant(
        "a worker that lost a lease goes on renewing it",
        _HOLDINGS,
        "            self._drop(held, str(lost))\n            raise",
        "            held.lease = self._table.get(held.lease.key) or held.lease\n            raise",
    ),
    Mutant(
        "dead workers are given leases",
        _LIVENESS,
        "        if self.stood(row) > patience:\n            return False",
        "        if self.stood(row) > patience:\n            return True",
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
)


class _Planter(importlib.abc.MetaPathFinder):
    """Finds the mutant's module and compiles it with the bug in it."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._mutant.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(self._mutant, fullname, spec.origin)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, mutant: Mutant, fullname: str, path: str) -> None:
        super().__init__(fullname, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType | None:
        text = self.get_data(self.get_filename(fullname)).decode()
        return compile(self._mutant.applied(text), self.path, "exec", dont_inherit=True)


def hunt(mutant: Mutant, most: int) -> dict[str, object]:
    """Plant it and run seeds until one fails. In this process, which is spoilt by it."""
    sys.meta_path.insert(0, _Planter(mutant))
    from kcl_dagster.testing.simulation.campaign import run_seed

    for seed in range(1, most + 1):
        result = run_seed(seed)
        if result.violations:
            first = result.violations[0]
            return {"seeds": seed, "property": first.name, "what": first.what[:160]}
    return {"seeds": None}


def hunt_elsewhere(mutant: Mutant, most: int) -> dict[str, object]:
    """In a process of its own."""
    command = [sys.executable, "-m", "tests.simulation.mutants", "--hunt", mutant.name, "--most", str(most)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"seeds": None, "error": done.stderr.strip().splitlines()[-1:]}
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def _selected(text: str | None) -> Iterator[Mutant]:
    return (mutant for mutant in MUTANTS if text is None or text in mutant.name)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("--most", type=int, default=MOST_SEEDS, help="seeds within which each has to be found")
    parser.add_argument("--only", help="those whose name contains this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--hunt", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.hunt is not None:
        mutant = next(mutant for mutant in MUTANTS if mutant.name == arguments.hunt)
        sys.stdout.write(json.dumps(hunt(mutant, arguments.most)) + "\n")
        return 0
    began, escaped, most = time.monotonic(), 0, 0
    mutants = list(_selected(arguments.only))
    with ThreadPoolExecutor(arguments.jobs) as pool:
        results = pool.map(lambda mutant: hunt_elsewhere(mutant, arguments.most), mutants)
        for mutant, found in zip(mutants, results, strict=True):
            seeds = found["seeds"]
            if isinstance(seeds, int):
                most = max(most, seeds)
                sys.stdout.write(f"{seeds:4} seeds  {found['property']:4} {mutant.name}\n")
            else:
                escaped += 1
                sys.stdout.write(f"ESCAPED           {mutant.name} {found.get('error', '')}\n")
            sys.stdout.flush()
    verdict = f"{escaped} escaped" if escaped else f"all found, within {most} seeds"
    sys.stdout.write(f"{len(mutants)} planted bugs, {verdict} ({time.monotonic() - began:.0f} s)\n")
    return 1 if escaped else 0


if __name__ == "__main__":
    sys.exit(main())
