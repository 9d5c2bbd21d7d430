"""The status of an application in a terminal: once, or refreshed like `top` until Ctrl-C."""

import json
import sys
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kcl_dagster.errors import KclError
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.counting import counted
from kcl_dagster.model.lease import Lease
from kcl_dagster.operations.operation import Row
from kcl_dagster.operations.printable import cell, show
from kcl_dagster.operations.status import Status
from kcl_dagster.runtime import Clock

LEASE_COLUMNS: Final = ("lease", "owner", "behind (s)", "checkpoint", "KB/s", "state")
WORKER_COLUMNS: Final = ("worker", "state", "leases", "behind (s)", "heartbeat (s ago)", "run")

LOOK_SECONDS: Final = 2.0  # between two reads of the tables; each read takes a few small requests
FEWEST_ROWS: Final = 5  # rows of leases that are shown, however few lines the terminal has
OTHER_LINES: Final = 12  # headings and frames

LONGEST_WHOLE: Final = 22  # ids of shards and workers have 20 characters, and two columns of ids fit into 80
SHOWN_DIGITS: Final = 8  # of the 56 digits of a sequence number; --json shows all

_STYLES: Final = {
    "unserved": "bold red",
    "stopped": "bold red",
    "hung": "bold red",
    "failing": "yellow",
    "finished": "dim",
}


def view(status: Status, rows: int | None = None) -> RenderableType:
    """The status as tables of workers and leases. `rows`: show only this number of leases, the worst ones."""
    shown = status.worst_first if rows is None else status.worst_first[:rows]
    styles = [_STYLES.get(status.state_of(lease)) for lease in shown]
    leases = _table(LEASE_COLUMNS, lease_rows(status, shown), ("lease", "owner"), styles)
    parts: list[RenderableType] = [
        _heading(status),
        _table(WORKER_COLUMNS, worker_rows(status), ("worker",)),
        leases,
    ]
    if len(shown) < len(status.leases):
        parts.append(Text(f"and {counted(len(status.leases) - len(shown), 'lease')} less far behind", style="dim"))
    notes = {_BASIS.get(status.behind_by(lease) or "") for lease in shown if not lease.is_finished} - {None}
    parts += [Text(note, style="dim") for note in sorted(filter(None, notes))]
    parts += [cell(f"{key} is stopped: {why}", "bold red") for key, why in sorted(status.why_stopped.items())]
    parts += [cell(line, "yellow") for line in status.about_failing]
    parts += [cell(line, "bold red") for line in status.held_threads]
    parts += [cell(line, "yellow") for line in status.given_up]
    parts += [cell(f"unreadable: {problem}", "bold red") for problem in status.unreadable]
    return Group(*parts)


_BASIS: Final = {
    "stream": "no worker: seconds behind by the arrival of the first unread record",
    "clock": "no worker, and no answer of the stream: seconds behind since the shard was last read to its end",
}


def place(checkpoint: Checkpoint | None) -> str:
    """A short form of a checkpoint: the last digits of its sequence number."""
    if checkpoint is None or checkpoint.is_sentinel:
        return "" if checkpoint is None else str(checkpoint)
    sub = f"/{checkpoint.sub_sequence}" if checkpoint.sub_sequence else ""
    return f"…{checkpoint.sequence[-SHOWN_DIGITS:]}{sub}"


def _told(status: Status, lease: Lease) -> str:
    """The state of a lease in words, with the details that are known."""
    state = status.state_of(lease)
    if state == "hung":
        since = datetime.fromtimestamp(status.slow_since[lease.key], UTC)
        return f"hangs in your code since {since:%H:%M} UTC"
    attempt = status.failing.get(lease.key)
    return f"failing (attempt {attempt})" if state == "failing" and attempt else state


def _heading(status: Status) -> Text:
    behind = status.furthest_behind_ms
    furthest = ", lag not known" if behind is None else f", {behind / 1000:.1f} s behind"
    unserved = len(status.unserved)
    text = cell(
        f"{status.application.name}: leader {status.leader or 'none'}; "
        f"{counted(len(status.open_leases), 'open lease')}, {unserved} unserved, "
        f"{counted(len(status.living), 'worker')}{furthest} "
        f"({datetime.fromtimestamp(status.at, UTC):%H:%M:%S} UTC)"
    )
    about_run = status.about_last_run
    expects_leader = status.complete_within is None and (about_run is None or not status.is_well)
    if not status.is_well or (status.leader is None and expects_leader):
        text.stylize("bold red")
    through = status.complete_through or f"a moment that is not known: {status.why_not_known}"
    text.append("\n")
    text.append_text(cell(f"complete through {through}"))
    if about_run is not None:
        text.append("\n")
        text.append_text(cell(about_run, "bold red" if status.failed_run is not None else ""))
    for line in (*status.about_streams, *status.about_unended_runs):
        text.append("\n")
        text.append_text(cell(line, "bold red"))
    control = status.control
    paused = ["the application"] if control.paused else [*sorted(control.leases), *sorted(control.slots)]
    if paused:
        text.append("\n")
        by = control.changed_by or "an operator"
        text.append_text(cell(f"paused by {by}: {', '.join(paused)}", "bold yellow"))
    return text


def _table(
    columns: Sequence[str], rows: Sequence[Row], whole: Collection[str], styles: Sequence[str | None] = ()
) -> Table:
    """A table for 80 columns. Users copy the names in the columns `whole` into commands, so short names remain on
    one line. Long names are broken, because rich would cut them off."""
    table = Table(*columns, padding=(0, 0, 0, 0))
    for row, style in zip_longest(rows, styles):
        values = (row[name] for name in columns)
        texts = (cell(f"{value:.1f}" if isinstance(value, float) else str(value)) for value in values)
        table.add_row(*texts, style=style)
    for column in table.columns:
        column.overflow = "fold"
        longest = max((len(str(text)) for text in column.cells), default=0)
        column.no_wrap = column.header in whole and longest <= LONGEST_WHOLE
    return table


def lease_rows(status: Status, leases: Sequence[Lease]) -> list[Row]:
    return [
        {
            "lease": lease.key,
            "owner": str(lease.actual_owner or ""),
            "behind (s)": "" if behind is None else round(float(behind), 1),
            "checkpoint": place(lease.checkpoint),
            "KB/s": "" if lease.throughput_kbps is None else round(lease.throughput_kbps, 1),
            "state": _told(status, lease),
        }
        for lease, behind in ((lease, status.seconds_behind(lease)) for lease in leases)
    ]


def worker_rows(status: Status) -> list[Row]:
    return [
        {
            "worker": row["worker"],
            "state": row["state"],
            "leases": row["leases"],
            "behind (s)": "" if row["behind_ms"] is None else round(row["behind_ms"] / 1000, 1),
            "heartbeat (s ago)": "" if row["seconds_since_heartbeat"] is None else row["seconds_since_heartbeat"],
            "run": row["run"] or "",
        }
        for row in status.to_document()["workers"]
    ]


def watch(look: Callable[[], Status], every: float, console: Console, clock: Clock) -> None:
    """Show the status repeatedly until Ctrl-C. Raises an error of the first read. If a later read fails, the error
    is shown, and the last status remains on the screen."""
    if not console.is_terminal:
        _each(
            look, every, clock, lambda status: show(view(status), console), lambda text: show(cell(text), console)
        )
        return
    last: list[RenderableType] = []
    with Live(console=console, screen=True, auto_refresh=False) as live:

        def refresh(status: Status) -> None:
            last[:] = [view(status, max(FEWEST_ROWS, console.height - OTHER_LINES - len(status.workers)))]
            live.update(last[0], refresh=True)

        def say(problem: str) -> None:
            live.update(Group(*last, cell(problem, "bold red")), refresh=True)

        _each(look, every, clock, refresh, say)


def watch_json(look: Callable[[], Status], every: float, clock: Clock) -> None:
    """Print the status repeatedly, as one JSON document per line."""

    def write(status: Status) -> None:
        sys.stdout.write(json.dumps(status.to_document()) + "\n")
        sys.stdout.flush()

    _each(look, every, clock, write, lambda text: sys.stderr.write(f"kcl-dagster: {text}\n"))


def _each(
    look: Callable[[], Status],
    every: float,
    clock: Clock,
    show: Callable[[Status], object],
    say: Callable[[str], object],
) -> None:
    """Show the status repeatedly until Ctrl-C. Errors are shown, but an error of the first read is raised."""
    is_first = True
    try:
        while True:
            try:
                show(look())
            except KclError as error:
                if is_first:
                    raise
                say(" ".join(str(error).split()))
            is_first = False
            clock.sleep(every)
    except KeyboardInterrupt:
        return
