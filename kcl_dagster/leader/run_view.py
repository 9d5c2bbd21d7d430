"""The information of the orchestrator about the runs of workers."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from kcl_dagster.model.lease import WorkerId

RunStatus = Literal["queued", "starting", "running", "canceling"]


@dataclass(frozen=True, slots=True)
class SlotRun:
    """The active run of a slot. `started_at`: epoch seconds; for a queued run, when it was requested."""

    run_id: str
    worker_id: WorkerId
    status: RunStatus
    started_at: float
    code: str | None = None
    """The version of the code with which the run was launched; None if it was launched without one."""


@dataclass(frozen=True, slots=True)
class LoadedCode:
    """The consumer's code in the leader's process. `since`: epoch seconds at which this process loaded it."""

    version: str
    since: float

    def is_newer_than(self, run: SlotRun) -> bool:
        """Whether `run` has other code, and began before this process loaded its code.

        If two processes with different code lead in turn, neither replaces runs that began after both processes had
        loaded their code. The processes therefore do not replace each other's runs for ever.
        """
        return run.code != self.version and run.started_at < self.since


def _none_is_known(run_ids: Collection[str]) -> Collection[str]:  # noqa: ARG001
    return ()


@dataclass(frozen=True, slots=True)
class RunView:
    """The active runs by slot, and a function `finished` that returns which of the given runs are over.

    `finished` must not return runs that it does not know, because another deployment may have launched them. It is
    called once for each read of the tables, at most three times per tick.
    """

    slots: Mapping[str, SlotRun] = field(default_factory=dict)
    finished: Callable[[Collection[str]], Collection[str]] = _none_is_known
    launches: bool = True
    """Whether the leader's launches take effect. False if the leader runs outside the orchestrator."""

    code: LoadedCode | None = None
    """The code with which workers are launched. None: the code of workers is not compared."""

    unknown: str = ""
    """Why the orchestrator's runs could not be read; empty if they could."""
