"""The request to a worker to stop."""

from enum import StrEnum


class StopReason(StrEnum):
    ASKED = "asked to stop"
    DRAINED = "drained"
    CAUGHT_UP = "everything that was to be read is stored"
    LIFETIME = "end of lifetime"
    MISCONFIGURED = "the settings cannot work"
    ORPHANED = "no process or run is responsible for this worker any more"
    STUCK = "what is left cannot be read now"


class StopSignal:
    """A request to stop. It can be set on any thread and in a signal handler, because it takes no lock. If it is
    set again, the first reason is kept."""

    def __init__(self) -> None:
        self._reason: StopReason | None = None
        self._detail = ""

    def request(self, reason: StopReason = StopReason.ASKED, detail: str = "") -> None:
        if self._reason is None:
            self._detail = detail
            self._reason = reason

    def is_requested(self) -> bool:
        return self._reason is not None

    @property
    def reason(self) -> StopReason | None:
        return self._reason

    @property
    def detail(self) -> str:
        return self._detail

    def __str__(self) -> str:
        if self._reason is None:
            return "not asked to stop"
        return f"{self._reason}: {self._detail}" if self._detail else str(self._reason)
