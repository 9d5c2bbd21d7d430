"""The row that records how the last bounded run ended. The leases do not show this, because the run released them.

A bounded run is a worker that ends when everything that arrived before its bound is stored. The row records the run
with the latest bound. If two runs have the same bound, the row records the run that ended later. So if a run fails,
and a later run with the same or a later bound succeeds, the row no longer shows the failure: the later run has
stored the records of the failed run, too.
"""

from dataclasses import dataclass
from typing import Final

from kcl_dagster import aws
from kcl_dagster.application import Application
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables.attributes import ENTITY_TYPE, Item, ItemReader, n, s
from kcl_dagster.tables.expressions import Request, put
from kcl_dagster.tables.outcomes import WriteVerdict
from kcl_dagster.tables.places import Place, TableLayout
from kcl_dagster.tables.sending import DEADLINE_SECONDS, Applied, Sender

BOUNDED_RUN_KEY: Final = "kdBoundedRun"
BOUNDED_RUN: Final = "KD_BOUNDED_RUN"
RUN: Final = "kdRunId"
ENDED_AT: Final = "kdEndedAt"  # epoch seconds
BOUND: Final = "kdBound"  # epoch seconds
PROBLEM: Final = "kdProblem"
LONGEST_PROBLEM: Final = 4_000  # characters; a problem names up to five shards, with 300 characters each


@dataclass(frozen=True, slots=True)
class EndedRun:
    """The end of a bounded run. `bound`: the run had to store everything that had arrived by this moment. `bound`
    and `ended_at` are in epoch seconds. `problem`: why the run did not store everything, and for which shards. The
    text is empty if the run stored everything."""

    run_id: str
    ended_at: int
    bound: int
    problem: str = ""

    @property
    def failed(self) -> bool:
        return bool(self.problem)


class BoundedRunRow:
    """Reads and replaces the row. Has no state, so any thread can call it."""

    def __init__(
        self,
        client: aws.Client,
        application: Application,  # noqa: ARG002 (all table classes take the same arguments)
        layout: TableLayout,
        runtime: Runtime,
        *,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        self._sender = Sender(client, runtime, deadline_seconds)
        self._place = layout.coordinator

    def load(self) -> EndedRun | None:
        """Read the row. None if no bounded run has ended yet. Raises UnreadableItem."""
        return self._parsed(self._sender.get(self._place.table, {self._place.key: s(BOUNDED_RUN_KEY)}))

    def save(self, run: EndedRun) -> bool:
        """Replace the row. Returns False if a run with a later bound has written it."""
        wanted = EndedRun(run.run_id, run.ended_at, run.bound, run.problem[:LONGEST_PROBLEM])

        def judge(item: Item | None) -> WriteVerdict:
            now = self._parsed(item)
            if now == wanted:
                return WriteVerdict.APPLIED
            return WriteVerdict.STANDING if now is None or now.bound <= wanted.bound else WriteVerdict.SUPERSEDED

        return isinstance(self._sender.write(save_bounded_run(self._place, wanted), judge), Applied)

    def _parsed(self, item: Item | None) -> EndedRun | None:
        if item is None:
            return None
        reader = ItemReader(item, self._place.key)
        if reader.text(ENTITY_TYPE) != BOUNDED_RUN:
            reader.refuse(ENTITY_TYPE, f"should be {BOUNDED_RUN}")
        return EndedRun(
            run_id=reader.required_text(RUN),
            ended_at=reader.required_whole(ENDED_AT),
            bound=reader.required_whole(BOUND),
            problem=reader.text(PROBLEM) or "",
        )


def save_bounded_run(place: Place, run: EndedRun) -> Request:
    """Return the request that replaces the row. DynamoDB refuses it if the row records a run with a later bound."""
    item: Item = {
        place.key: s(BOUNDED_RUN_KEY),
        ENTITY_TYPE: s(BOUNDED_RUN),
        RUN: s(run.run_id),
        ENDED_AT: n(run.ended_at),
        BOUND: n(run.bound),
    }
    if run.problem:
        item[PROBLEM] = s(run.problem)
    condition = f"attribute_not_exists(#key) OR ({ENTITY_TYPE} = :kind AND {BOUND} <= :bound)"
    return put(place.table, place.key, item, condition, {":kind": s(BOUNDED_RUN), ":bound": n(run.bound)})
