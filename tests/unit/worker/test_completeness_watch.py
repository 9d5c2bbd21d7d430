"""What a worker knows of the application's completeness, and gives its table with each commit."""

from kcl_dagster.errors import ServiceError
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.completeness_watch import READ_SECONDS, CompletenessWatch
from tests.doubles.clock import FakeClock


def test_the_row_is_read_now_and_then_and_what_was_read_stays() -> None:
    clock, rows = FakeClock(), [WrittenThrough(), WrittenThrough(100), WrittenThrough(50, 1, 50)]
    asked = 0

    def load() -> WrittenThrough:
        nonlocal asked
        asked += 1
        if not rows:
            raise ServiceError("no")
        return rows.pop(0)

    watch = CompletenessWatch(load, clock)
    assert watch.last() is None
    seen = []
    for _ in range(4):
        watch.step()
        watch.step()
        seen.append(watch.last())
        clock.advance(READ_SECONDS)
    assert seen == [None, WrittenThrough(100), WrittenThrough(50, 1, 50), WrittenThrough(50, 1, 50)]
    assert asked == 4
