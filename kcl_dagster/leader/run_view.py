"""What the orchestrator knows of worker runs."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from kcl_dagster.model.lease import WorkerId

RunStatus = Literal["queued", "starting", "running", "canceling"]


@dataclass(frozen=True, slots=True)
class SlotRun:
    """The active run of a slot. `started_at` in epoch seconds; of a queued run, when it was asked for."""

    run_id: str
    worker_id: WorkerId
    status: RunStatus
    started_at: float
    code: str | None = None
    """The version of the code that the run was launched with; None where it was launched without one."""


@dataclass(frozen=True, slots=True)
class LoadedCode:
    """The consumer's code in the process of the leader. `since`: epoch seconds, when this process loaded it."""

    version: str
    since: float

    def is_newer_than(self, run: SlotRun) -> bool:
        """Whether `run` has other code, and began before this process loaded its own.

        Where two processes lead with different code, neither of them judges what began after both had started.
        So each start of a process ends a run once at most, and there is no endless replacement.
        """
        return run.code != self.version and run.started_at < self.since


def _none_is_known(run_ids: Collection[str]) -> Collection[str]:  # noqa: ARG001
    return ()


@dataclass(frozen=True, slots=True)
class RunView:
    """Active runs by slot, and a function that returns which of some runs are over.

    `finished` is called at most once a tick. It must not return a run that it does not know: that run may belong to
    another deployment.
    """

    slots: Mapping[str, SlotRun] = field(default_factory=dict)
    finished: Callable[[Collection[str]], Collection[str]] = _none_is_known
    launches: bool = True
    """Whether launches of the leader take effect. They have none if the leader runs outside the orchestrator."""

    code: LoadedCode | None = None
    """What newly launched workers run; None: the code of workers is not judged."""

    unknown: str = ""
    """Why the orchestrator could not be asked for its runs; empty when it was asked."""
