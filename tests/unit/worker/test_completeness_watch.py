"""What a worker knows of the application's completeness, and gives its table with each commit."""

from kcl_dagster.errors import ServiceError
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.completeness_watch import READ_SECONDS, CompletenessWatch
from tests.doubles.clock import FakeClock
from tests.unit.worker.kit import World
from tests.unit.worker.test_leaderless import A


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


def test_a_batch_says_through_when_the_application_was_complete_before_it() -> None:
    world = World()
    run = world.worker("w", load_completeness=lambda: WrittenThrough(1234))
    run.worker.start()
    world.assign(run)
    for text in "ab":
        world.stream.put(A, text)
        run.until_idle()
        run.worker.step_housekeeping()
    assert [batch.complete for batch in run.sink.batches] == [None, WrittenThrough(1234)]
