"""Many readers wait for the allowance of one task."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kcl_dagster.streams import pacing
from kcl_dagster.streams.pacing import MAX_PAGE_BYTES, Allowance

READERS = 100
PATIENCE = 60.0  # seconds on a busy machine; nothing here waits for a time


class Reader:
    """A thread that waits for one page. `checks`: how often it woke and looked whether it may go on."""

    def __init__(self, allowance: Allowance) -> None:
        self.checks = 0
        self.granted: bool | None = None
        self.waits = threading.Event()
        self._allowance = allowance
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._allowance.page_permit(self._is_stopped) as granted:
            self.granted = granted

    def _is_stopped(self) -> bool:
        self.checks += 1
        self.waits.set()
        return False

    def join(self) -> None:
        self._thread.join(PATIENCE)


@pytest.fixture
def allowance() -> Allowance:
    """Room for one page at a time."""
    return Allowance(records=1000, bytes_=MAX_PAGE_BYTES, readers=READERS)


@pytest.fixture
def page(allowance: Allowance, monkeypatch: pytest.MonkeyPatch) -> Iterator[ExitStack]:
    """A page that is under way until it is closed. Waiting readers do not look by themselves."""
    monkeypatch.setattr(pacing, "STOP_POLL_SECONDS", 10 * PATIENCE)
    with ExitStack() as page:
        assert page.enter_context(allowance.page_permit(lambda: False))
        yield page


def waiting(allowance: Allowance) -> list[Reader]:
    readers = [Reader(allowance) for _ in range(READERS)]
    assert all(reader.waits.wait(PATIENCE) for reader in readers)
    return readers


def test_the_end_of_a_page_wakes_one_of_many_waiting_readers(allowance: Allowance, page: ExitStack) -> None:
    """If each page woke all readers, a thousand shards would take a million wake-ups."""
    readers = waiting(allowance)
    page.close()
    for reader in readers:
        reader.join()
    assert all(reader.granted for reader in readers)
    assert sum(reader.checks for reader in readers) <= 3 * READERS


def test_all_waiting_readers_end_when_the_budget_is_spent(allowance: Allowance, page: ExitStack) -> None:
    readers = waiting(allowance)
    assert allowance.claim([1] * 2000) == 1000
    for reader in readers:
        reader.join()
    assert [reader.granted for reader in readers] == [False] * READERS
    page.close()
