"""Delete the leases of former streams: streams that the application does not read any more, or whose name another
stream has now.

The leader releases the leases of former streams, and does not delete them. To a leader with a wrong region, account
or endpoint, the present streams of the application look like former streams. Therefore, only an operator deletes
the leases of former streams. The operation is refused

- while a worker owns one of the leases,
- while a leader can assign them,
- for a stream that still exists and that the application reads.

The settings on this machine determine which streams are former. A deployed leader may have other settings, because
it runs another branch or has other environment variables. If a stream exists, or was read within the last day, its
leases are therefore deleted only if the operator names the stream.

Before the leases and the start positions of their streams are deleted, they are exported, so that an import can
restore them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from kcl_dagster.errors import ConfigurationError, KclError, StreamNotFound, Unsafe
from kcl_dagster.model.counting import counted
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.model.superseded import former_streams
from kcl_dagster.operations.backup import export_streams
from kcl_dagster.operations.open_application import OpenApplication
from kcl_dagster.operations.reset import refusals
from kcl_dagster.streams.listing import describe

Keep = Callable[[str], str]
"""A function that stores an export and returns its path or address. Raises a KclError if it cannot store the
export."""

LATELY_SECONDS: Final = 24 * 3600.0  # an application may have been paused for a night


@dataclass(frozen=True, slots=True)
class Forgetting:
    """The result: the leases that were deleted, or that a dry run would delete.

    - `overtaken`: leases that another process wrote meanwhile, and that were kept.
    - `in_doubt`: streams, each with the reason for the doubt. Their leases are deleted only if the operator names
      the stream. Filled only by a dry run.
    - `export`: the path or address of the export.
    """

    dry: bool
    leases: Mapping[str, tuple[LeaseKey, ...]]
    """Lease keys by the identifiers of former streams."""

    overtaken: tuple[LeaseKey, ...] = ()
    in_doubt: Mapping[str, str] = field(default_factory=dict)
    export: str | None = None

    def lines(self) -> list[str]:
        done = "would be deleted" if self.dry else "deleted"
        kept = [] if self.export is None else [f"what was deleted is in {self.export}: an import puts it back"]
        return [
            *(f"{stream}: {counted(len(keys), 'lease')} {done}" for stream, keys in self.leases.items()),
            *(f"{key}: kept, because another process wrote it" for key in self.overtaken),
            *(f"{stream} has to be named (--former {stream}): {why}" for stream, why in self.in_doubt.items()),
            *kept,
        ] or ["there are no leases of former streams"]

    def to_document(self) -> dict[str, Any]:
        return {
            "dry_run": self.dry,
            "streams": {stream: list(keys) for stream, keys in self.leases.items()},
            "overtaken": list(self.overtaken),
            "in_doubt": dict(self.in_doubt),
            "export": self.export,
        }


def forget(opened: OpenApplication, streams: Collection[str] = (), *, keep: Keep, dry: bool = False) -> Forgetting:
    """Delete the leases and the start positions of all former streams, or of those in `streams`
    (`account:name:epoch`).

    Without `streams`, nothing is deleted if one of the former streams exists or was read lately. `keep` is called
    once, before anything is deleted. It is not called for a dry run, or if there is nothing to delete.

    Raises Unsafe and ConfigurationError before anything is changed.
    """
    scan = opened.scan()
    if scan.unreadable:
        raise Unsafe(f"the lease table has rows that cannot be parsed: {scan.unreadable[0]}")
    names = [stream.name for stream in opened.application.streams]
    former = {str(stream): stream for stream in former_streams(names, scan.leases)}
    if others := sorted(set(streams) - set(former)):
        known = f"those are {', '.join(sorted(former))}" if former else "there is none"
        raise ConfigurationError(f"{', '.join(others)} is no former stream of the application: {known}")
    chosen = {name: former[name] for name in sorted(former) if not streams or name in streams}
    affected = {
        name: sorted((lease for lease in scan.leases if lease.stream == stream), key=lambda lease: lease.key)
        for name, stream in chosen.items()
    }
    _refuse(opened, chosen.values(), [lease for leases in affected.values() for lease in leases])
    deleted = {name: tuple(lease.key for lease in leases) for name, leases in affected.items()}
    in_doubt = {} if streams else _in_doubt(opened, chosen, affected)
    if dry or not affected:
        return Forgetting(dry, deleted, in_doubt=in_doubt)
    if in_doubt:
        would = "; ".join(Forgetting(True, deleted, in_doubt=in_doubt).lines())
        raise Unsafe(
            f"nothing is deleted, because the deployed application may read a stream that it does not name here: "
            f"{would}"
        )
    every = {key for keys in deleted.values() for key in keys}
    export = keep("".join(f"{line}\n" for line in export_streams(opened, every, chosen)))
    counts = {name: len(keys) for name, keys in deleted.items()}
    opened.audit.write("forget", opened.by, {"streams": counts, "export": export})
    overtaken = tuple(
        lease.key
        for leases in affected.values()
        for lease in leases
        if not opened.leases.delete(lease, forced=True)
    )
    kept = set(overtaken)
    for name, keys in deleted.items():
        if kept.isdisjoint(keys):  # while a lease of the stream remains, its start position is kept
            opened.starts.delete(name)
    gone = {name: tuple(key for key in keys if key not in kept) for name, keys in deleted.items()}
    return Forgetting(dry, gone, overtaken, export=export)


def _in_doubt(
    opened: OpenApplication, chosen: Mapping[str, StreamIdentifier], affected: Mapping[str, Sequence[Lease]]
) -> dict[str, str]:
    """The streams that the deployed application possibly reads, with the reason."""
    found = {}
    for name, stream in chosen.items():
        read = max(
            (lease.stored_through for lease in affected[name] if lease.stored_through is not None), default=0
        )
        if opened.runtime.clock.now() - read < LATELY_SECONDS:
            found[name] = f"its leases were served until {datetime.fromtimestamp(read, UTC):%Y-%m-%d %H:%M} UTC"
        elif (exists := _existence(opened, stream)) is not None:
            found[name] = exists
    return found


def _existence(opened: OpenApplication, stream: StreamIdentifier) -> str | None:
    try:
        facts = describe(opened.kinesis, stream.name, runtime=opened.runtime)
    except StreamNotFound:
        return None
    except KclError as error:
        return f"whether it exists could not be found out: {error}"
    if stream.creation_epoch is not None and int(facts.created) != stream.creation_epoch:
        return None
    return "it exists"


def _refuse(opened: OpenApplication, streams: Collection[StreamIdentifier], affected: Sequence[Lease]) -> None:
    """Raise Unsafe if the leases are possibly in use, or possibly needed again."""
    if not affected:
        return
    for stream in streams:
        if _is_read(opened, stream):
            raise Unsafe(
                f"the application reads {stream}: its leases are those that count, and the others were made by a "
                "leader that asked another region, account or endpoint"
            )
    control = opened.control.load()
    problems = refusals(affected, control, None if control.paused else opened.leader())
    if problems:
        more = "; ..." if len(problems) > 5 else ""
        raise Unsafe(
            f"{'; '.join(problems[:5])}{more}. Pause the application (kcl-dagster pause), and wait until its "
            "workers have ended"
        )


def _is_read(opened: OpenApplication, stream: StreamIdentifier) -> bool:
    """Whether the application reads this stream. It does not read a deleted stream, even if another stream now has
    its name."""
    settings = next((one for one in opened.application.streams if one.name == stream.name), None)
    if settings is None:
        return False
    if settings.creation_epoch is not None:  # even if Kinesis, asked in the wrong region, does not have the stream
        return settings.creation_epoch == stream.creation_epoch
    try:
        facts = describe(opened.kinesis, stream.name, runtime=opened.runtime)
    except StreamNotFound:
        return False
    return int(facts.created) == stream.creation_epoch
