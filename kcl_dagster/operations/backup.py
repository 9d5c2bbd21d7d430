"""Export leases as JSON lines, and import them into a table.

An export contains every attribute, including those that this package does not know. An import omits the owners of
the leases, because they do not own the leases in the table that is written.

`forget` exports the leases that it deletes, with the start positions of their streams. An import records these
start positions for streams that have none.
"""

import base64
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kcl_dagster.errors import ConfigurationError, TableNotFound, UnreadableItem, Unsafe
from kcl_dagster.leader.application_completeness import stored_through
from kcl_dagster.model.counting import counted
from kcl_dagster.operations.open_application import OpenApplication
from kcl_dagster.operations.reset import iso, lines_of_moment, refusals
from kcl_dagster.tables import attributes as a
from kcl_dagster.tables.attributes import Item
from kcl_dagster.tables.expressions import Request, put
from kcl_dagster.tables.items import lease_from_item
from kcl_dagster.tables.outcomes import WriteVerdict
from kcl_dagster.tables.scanning import scan_items
from kcl_dagster.tables.sending import Applied, Sender
from kcl_dagster.tables.starts import start_from_item, start_to_item
from kcl_dagster.tables.table_layout import create_tables
from kcl_dagster.worker.pins import pin_of

_OWNERSHIP = (a.OWNER, a.CHECKPOINT_OWNER, a.HANDOFF)
# Attributes that workers write into their leases even if nothing was processed. If a lease differs from the file
# only in these attributes, an import does not change the lease.
_PASSING = frozenset(
    {*_OWNERSHIP, a.COUNTER, a.SWITCHES, a.THROUGHPUT, a.STORED_THROUGH, a.CHAIN, a.CLAIM, a.CLAIM_STATE, a.BATCH}
)
LEASES_NAMED = 3
BEGUN = "a batch that was begun is read again as a new one: if the sink has its records, they are there twice"


@dataclass(frozen=True, slots=True)
class ImportReport:
    """The result of an import or a dry run, as lease keys. `overtaken`: leases that were not imported, because
    another process wrote them meanwhile."""

    created: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    overtaken: tuple[str, ...] = ()
    dry: bool = False
    begun: tuple[str, ...] = ()
    """Leases that had begun a batch when they were exported."""

    sets_back: bool = False
    """Whether the time through which the application is complete moves back. The time stays the same if all leases
    are unchanged."""

    starts: tuple[str, ...] = ()
    """Streams whose start positions are in the file. An import records a start position only for a stream that has
    none."""

    complete_through: int | None = None
    """The time (epoch seconds) through which the application is complete after the import. None if it is not
    known."""

    @property
    def counts(self) -> dict[str, int]:
        return {what: len(keys) for what, keys in self._keys().items()}

    def lines(self) -> list[str]:
        said = ", ".join(f"{number} {what}" for what, number in self.counts.items())
        starts = [f"{stream}: its start position is recorded, unless one is known" for stream in self.starts]
        begun = [f"{key}: {BEGUN}" for key in self.begun]
        moment = lines_of_moment(self.complete_through, dry=self.dry) if self.sets_back else ()
        return [said, *starts, *begun, *moment]

    def to_document(self) -> dict[str, Any]:
        moment = {"complete_through": iso(self.complete_through)} if self.sets_back else {}
        starts = {"starts": list(self.starts)} if self.starts else {}
        return {"dry_run": self.dry, **self._keys(), "begun": list(self.begun), **starts, **moment}

    def _keys(self) -> dict[str, list[str]]:
        return {
            "created": list(self.created),
            "replaced": list(self.replaced),
            "unchanged": list(self.unchanged),
            "overtaken": list(self.overtaken),
        }


# --- lines -------------------------------------------------------------------------------------------------------


def to_line(item: Mapping[str, Any]) -> str:
    """One item in DynamoDB's JSON, with bytes as base64."""
    return json.dumps({name: _out(value) for name, value in item.items()}, sort_keys=True)


def from_line(line: str, number: int) -> Item:
    """Read a line, which is a lease or the start position of a stream. Raises ConfigurationError with the number of
    the line."""
    try:
        document = json.loads(line)
        item = {name: _in(value) for name, value in document.items()}
        if _is_start(item):
            start_from_item(item, a.LEASE_KEY)
            return item
        lease = lease_from_item(item)
    except (ValueError, AttributeError, TypeError, UnreadableItem) as error:
        raise ConfigurationError(f"line {number} is no exported lease: {error}") from error
    if lease is None:
        raise ConfigurationError(f"line {number} is a row of another kind than a lease")
    return item


def _is_start(item: Mapping[str, Any]) -> bool:
    return bool(item.get(a.ENTITY_TYPE) == {"S": a.START_POSITION})


def _out(value: Mapping[str, Any]) -> dict[str, Any]:
    [(kind, content)] = value.items()
    match kind:
        case "B":
            return {kind: base64.b64encode(bytes(content)).decode()}
        case "BS":
            return {kind: [base64.b64encode(bytes(one)).decode() for one in content]}
        case "L":
            return {kind: [_out(one) for one in content]}
        case "M":
            return {kind: {name: _out(one) for name, one in content.items()}}
        case _:
            return {kind: content}


def _in(value: Mapping[str, Any]) -> dict[str, Any]:
    [(kind, content)] = value.items()
    match kind:
        case "B":
            return {kind: base64.b64decode(content, validate=True)}
        case "BS":
            return {kind: [base64.b64decode(one, validate=True) for one in content]}
        case "L":
            return {kind: [_in(one) for one in content]}
        case "M":
            return {kind: {name: _in(one) for name, one in content.items()}}
        case _:
            return {kind: content}


# --- export ------------------------------------------------------------------------------------------------------


def export_leases(opened: OpenApplication) -> Iterator[str]:
    """Yield a line for each lease, in the order of the keys. Leases that cannot be parsed are included. The
    application can continue to run meanwhile."""
    for _, item in sorted(_items(opened).items()):
        yield to_line(item)


def export_streams(opened: OpenApplication, keys: Collection[str], streams: Iterable[str]) -> Iterator[str]:
    """Yield a line for each of these leases, in the order of the keys, and then a line for each of these streams
    that has a start position."""
    for key, item in sorted(_items(opened).items()):
        if key in keys:
            yield to_line(item)
    for stream in streams:
        start = opened.starts.get(stream)
        if start is not None:
            yield to_line(start_to_item(start, a.LEASE_KEY))


def _items(opened: OpenApplication) -> dict[str, Item]:
    opened.scan()  # raises if there is no table
    sender = Sender(opened.dynamodb, opened.runtime)
    items = scan_items(sender, opened.layout.leases.table, consistent=True)
    is_lease = {None, a.LEASE}
    return {
        item[a.LEASE_KEY]["S"]: item
        for item in items
        if item.get(a.ENTITY_TYPE, {}).get("S") in is_lease and a.COUNTER in item
    }


# --- import ------------------------------------------------------------------------------------------------------


def import_leases(
    opened: OpenApplication, lines: Iterable[str], *, force: bool = False, dry: bool = False
) -> ImportReport:
    """Write exported leases without owners. Create the tables if there are none.

    An existing lease is not changed if it differs from the file only in attributes that a waiting worker writes.
    If existing leases differ in anything else:

    - Without `force`, Unsafe is raised.
    - With `force`, these leases are replaced. The counter of a replaced lease becomes higher. Unsafe is raised only
      if one of these leases has an owner, or could get one meanwhile.

    Raises Unsafe and ConfigurationError before anything is changed.
    """
    rows = [from_line(line, number) for number, line in enumerate(lines, 1) if line.strip()]
    items = [item for item in rows if not _is_start(item)]
    starts = [start_from_item(item, a.LEASE_KEY) for item in rows if _is_start(item)]
    keys = [item[a.LEASE_KEY]["S"] for item in items]
    if len(set(keys)) != len(keys):
        raise ConfigurationError("the file has a lease twice")
    for item in items:
        try:
            lease_from_item(item, multi_stream=opened.application.multi_stream)
        except UnreadableItem as error:
            raise ConfigurationError(
                f"the file is not of an application like {opened.application.name}: {error}"
            ) from error
    here = _here(opened, dry=dry)
    differing = {
        key: names
        for item, key in zip(items, keys, strict=True)
        if key in here and (names := _differences(item, here[key]))
    }
    if differing:
        said = _told(differing)
        _refuse_if_at_work(opened, list(differing), said)
        if not force:
            raise Unsafe(f"{said}: --force sets them back to what the file says")
    report = ImportReport(
        created=tuple(key for key in keys if key not in here),
        replaced=tuple(differing),
        unchanged=tuple(key for key in keys if key in here and key not in differing),
        dry=dry,
        starts=tuple(start.stream for start in starts),
    )
    changed = {key: item for key, item in zip(keys, items, strict=True) if key not in report.unchanged}
    report = replace(report, begun=tuple(key for key, item in changed.items() if _begun(item) is not None))
    if changed:
        report = replace(report, sets_back=True, complete_through=_complete_through(opened, changed, here))
    if dry:
        return report
    opened.audit.write("import", opened.by, report.to_document())
    sender = Sender(opened.dynamodb, opened.runtime)
    # Start positions are written before the leases. If the stream of a lease has no start position, a leader
    # assumes that another program created the lease.
    for start in starts:
        opened.starts.record(start)
    overtaken = []
    if report.sets_back:  # before and after the leases are written, as in a reset
        opened.completeness.set_back(report.complete_through)
    for key, item in changed.items():
        request = _write(opened.layout.leases.table, item, here.get(key))
        if not isinstance(sender.write(request, _is(request.parameters["Item"])), Applied):
            overtaken.append(key)
    if report.sets_back:
        written = opened.completeness.set_back(report.complete_through)
        report = replace(report, complete_through=written.through)
    done = set(overtaken)
    return replace(
        report,
        created=tuple(key for key in report.created if key not in done),
        replaced=tuple(key for key in report.replaced if key not in done),
        begun=tuple(key for key in report.begun if key not in done),
        overtaken=tuple(overtaken),
    )


def _complete_through(opened: OpenApplication, changed: Mapping[str, Item], here: Mapping[str, Item]) -> int | None:
    """The latest time through which the application can be complete after the import. It follows from the imported
    leases. None if it is not known."""
    try:
        known = opened.completeness.load().through
    except TableNotFound:  # a dry run creates no table
        return None
    try:
        leases = {
            key: lease
            for key, item in {**here, **changed}.items()
            if (lease := lease_from_item(item, multi_stream=opened.application.multi_stream)) is not None
        }
    except UnreadableItem:
        return None
    moments: list[int] = []
    for key in changed:
        lease = leases[key]
        if not lease.is_finished:
            siblings = {other.shard_id: other for other in leases.values() if other.stream == lease.stream}
            moment = stored_through(lease, siblings)
            if moment is None:
                return None
            moments.append(moment - int(opened.application.timings.arrival_margin))
    return None if known is None else min([known, *moments])


def _here(opened: OpenApplication, *, dry: bool) -> dict[str, Item]:
    try:
        return _items(opened)
    except TableNotFound:
        if not dry:
            create_tables(opened.dynamodb, opened.application, opened.layout, opened.runtime)
        return {}


def _told(differing: Mapping[str, Sequence[str]]) -> str:
    some = "; ".join(f"{key} in {', '.join(names)}" for key, names in list(differing.items())[:LEASES_NAMED])
    more = "; and others" if len(differing) > LEASES_NAMED else ""
    verb = "differs" if len(differing) == 1 else "differ"
    return f"{counted(len(differing), 'lease')} {verb} from the file ({some}{more})"


def _refuse_if_at_work(opened: OpenApplication, keys: Sequence[str], said: str) -> None:
    leases = [lease for lease in opened.scan().leases if lease.key in set(keys)]
    problems = refusals(leases, opened.control.load(), opened.leader())
    if problems:
        raise Unsafe(
            f"{said}, and the application runs: {'; '.join(problems[:LEASES_NAMED])}. To set leases back, "
            "pause the application first (kcl-dagster pause), and import with --force"
        )


def _differences(item: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """The names of the attributes that an import would change, without the attributes that workers write while they
    wait."""
    names = sorted({*item, *here} - _PASSING)
    return [name for name in names if _only(name, item) != _only(name, here)]


def _only(name: str, item: Mapping[str, Any]) -> str | None:
    return to_line({name: item[name]}) if name in item else None


def _write(table: str, item: Item, known: Item | None) -> Request:
    # An existing row keeps the name of its chain. The next owner settles this chain and publishes its decided
    # batches, which do not advance the imported lease.
    left_out = {*_OWNERSHIP, a.CHAIN, a.CLAIM, a.CLAIM_STATE}
    # Batch numbers above the number in the file can have been used for other records. The row is therefore written
    # without a number. The next owner then begins with a number from the clock, which is above all of them.
    left_out.add(a.BATCH)
    if _begun(item) is not None:
        left_out |= {a.PENDING, a.PENDING_SUB, a.PENDING_STATE}
    new = {name: value for name, value in item.items() if name not in left_out}
    if known is not None and a.CHAIN in known:
        new[a.CHAIN] = known[a.CHAIN]
    if known is None:
        return put(table, a.LEASE_KEY, new, "attribute_not_exists(#key)")
    counter = max(int(item[a.COUNTER]["N"]), int(known[a.COUNTER]["N"])) + 1
    new[a.COUNTER] = {"N": str(counter)}
    unowned = " AND ".join(f"attribute_not_exists({name})" for name in _OWNERSHIP)
    return put(table, a.LEASE_KEY, new, f"{a.COUNTER} = :known AND {unowned}", {":known": known[a.COUNTER]})


def _begun(item: Item) -> int | None:
    """The number of the batch that was in progress when the lease was exported; None if there was none. It is not
    known whether this batch was finished, so its records are read again as part of a new batch."""
    lease = lease_from_item(item)
    pin = None if lease is None else pin_of(lease)
    return None if pin is None else pin.number


def _is(wanted: Item) -> Any:
    def judge(item: Item | None) -> WriteVerdict:
        if item is not None and to_line(item) == to_line(wanted):
            return WriteVerdict.APPLIED
        return WriteVerdict.SUPERSEDED

    return judge
