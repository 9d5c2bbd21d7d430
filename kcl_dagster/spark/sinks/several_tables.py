"""Several tables of one consumer, whose function returns a DataFrame for each table, by name.

One entry in the chain (log of committed batches) beside the first table decides a batch for all tables. So the
batch becomes visible in all tables or in none, whatever their formats are. Readers can see it in one table earlier
than in another.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame

from kcl_dagster.chains.entry import FIRST, TableOutput, place_id
from kcl_dagster.chains.publication import discard
from kcl_dagster.chains.store import Entries
from kcl_dagster.errors import ConfigurationError, KclError, TransformError
from kcl_dagster.model.claim import ChainId
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.spark.batch_records import Records
from kcl_dagster.spark.sinks.contract import SparkSink
from kcl_dagster.spark.sinks.staging_job import Staging, stage, together
from kcl_dagster.spark.storage import Store
from kcl_dagster.spark.transform import Transform, guarded, is_frame
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.batch import Batch, PartCounts
from kcl_dagster.worker.staging import Destination, FormerParts, StagedBatch

OutputsTransform = Callable[[DataFrame], Mapping[str, DataFrame]]
"""The user's function, from the records of a batch to the rows of each table."""


@dataclass(slots=True)
class _Outputs:
    """The result of the function for the records of one batch. Each table takes its rows from this result, so that
    the function is called only once for a batch."""

    transform: OutputsTransform
    names: tuple[str, ...]
    _records: DataFrame | None = None
    _found: Mapping[str, DataFrame] = field(default_factory=dict)

    def of(self, name: str) -> Transform:
        def output(records: DataFrame) -> DataFrame:
            if records is not self._records:
                self._found = self._checked(self.transform(records))
                self._records = records
            return self._found[name]

        return output

    def forget(self) -> None:
        self._records, self._found = None, {}

    def _checked(self, found: object) -> Mapping[str, DataFrame]:
        wanted = f"a dict with a DataFrame for each table of the sink: {', '.join(self.names)}"
        if not isinstance(found, Mapping):
            raise TransformError(f"the transform must return {wanted}. This one returned {type(found).__name__}")
        missing = [name for name in self.names if name not in found]
        strange = [str(name) for name in found if name not in self.names]
        if missing or strange:
            problems = [f"it has no {name}" for name in missing] + [f"the sink has no {name}" for name in strange]
            raise TransformError(f"the transform must return {wanted}: {', '.join(problems)}")
        wrong = [
            f"{name} is of type {type(found[name]).__name__}" for name in self.names if not is_frame(found[name])
        ]
        if wrong:
            raise TransformError(
                f"the transform must return {wanted}: {', '.join(wrong)}. For a batch without rows of a table, "
                "return an empty DataFrame, such as records.limit(0)"
            )
        return found


class SeveralTables:
    """Stages batches for several sinks, one for each table. `opened`: for each table, a function that makes the
    sink from the table's own transform. `transform`: returns the rows of all tables. The chains are beside the
    first table."""

    def __init__(self, opened: Mapping[str, Callable[[Transform], SparkSink]], transform: OutputsTransform) -> None:
        called: Any = guarded(transform)  # type: ignore[arg-type]
        self._outputs = _Outputs(called, tuple(opened))
        self.sinks = {name: open_sink(self._outputs.of(name)) for name, open_sink in opened.items()}
        self._first = next(iter(self.sinks.values()))
        self._is_checked = False

    def _by_key(self) -> dict[str, SparkSink]:
        """The sinks by the names that entries use for the tables."""
        return dict(zip([FIRST, *list(self.sinks)[1:]], self.sinks.values(), strict=True))

    @property
    def stores_into(self) -> tuple[Store, ...]:
        """Implements `spark.sinks.contract.SparkSink.stores_into`."""
        return tuple(store for sink in self.sinks.values() for store in sink.stores_into)

    @property
    def entries(self) -> Entries:
        """Implements `worker.staging.StagingSink.entries`."""
        return self._first.entries

    @property
    def destinations(self) -> dict[str, Destination]:
        """Implements `worker.staging.StagingSink.destinations`."""
        return {key: sink.destinations[FIRST] for key, sink in self._by_key().items()}

    @property
    def former_parts(self) -> FormerParts:
        """The former parts of the first table. Other tables have none, because the versions that stored such parts
        supported only one table."""
        return self._first.former_parts

    def version(self) -> dict[str, Any]:
        """Return an empty dict, because the version of each table is requested separately."""
        return {}

    def staging(self) -> None:
        """Return None: fetches stage nothing, because a fetch does not know which records belong to which table."""

    def keep_complete(self, application: str, known: WrittenThrough, wanted: int) -> None:
        """Implements `worker.staging.StagingSink.keep_complete`."""
        problems: list[Exception] = []
        for sink in self.sinks.values():
            try:
                sink.keep_complete(application, known, wanted)
            except Exception as error:  # if one sink raises, the others are called nevertheless
                problems.append(error)
        if problems:
            raise problems[0]

    def begin_reading(self, chain: ChainId, time_column: str | None) -> None:
        """Do nothing, because fetches stage nothing for several tables."""

    def stage(self, data: Records, batch: Batch, chain: ChainId, number: int) -> StagedBatch:
        """Implements `worker.staging.StagingSink.stage`."""
        return stage(self.staged(data, batch, chain, number))

    def staged(self, data: Records, batch: Batch, chain: ChainId, number: int) -> Staging[StagedBatch]:
        """Implements `spark.sinks.contract.SparkSink.staged`."""
        self._refuse_shared()
        try:
            staged = yield from together(
                {key: sink.staged(data, batch, chain, number) for key, sink in self._by_key().items()},
                lambda key, one: self._discard(chain, key, one),
            )
        finally:
            self._outputs.forget()
        first = staged.pop(FIRST)
        return StagedBatch(
            first.files,
            _together([first.counts, *(one.counts for one in staged.values())]),
            first.rules,
            {
                key: TableOutput(one.files, one.rules, place_id(self.destinations[key].place))
                for key, one in staged.items()
            },
        )

    def _refuse_shared(self) -> None:
        """Raise ConfigurationError if two names of the sink refer to the same table. The table would get two
        commits with the same number, and would accept only the first of them. Called before the first batch of this
        process, because the location of a catalog's table is not known earlier."""
        if self._is_checked:
            return
        owners: dict[str, str] = {}
        for name, sink in self.sinks.items():
            root = sink.destinations[FIRST].files.root
            other = owners.setdefault(root, name)
            if other != name:
                raise ConfigurationError(f"{other} and {name} are one place, {root}: give each table its own")
        self._is_checked = True

    def _discard(self, chain: ChainId, key: str, batch: StagedBatch) -> None:
        """Remove the files of one table. Called if another table has failed. Files that cannot be removed now are
        removed with the chain, or by a vacuum of the table."""
        place, paths = self.destinations[key], [file.path for file in batch.files]
        with suppress(KclError, OSError):
            if place.commits is None:
                discard(place.files, chain, paths)
            else:
                place.commits.table.discard(paths)


def _together(counts: list[Mapping[LeaseKey, PartCounts]]) -> dict[LeaseKey, PartCounts]:
    """The counts of all tables by lease. Leases whose rows cannot be counted, because the output has no
    `lease_key`, are left out."""
    found: dict[LeaseKey, PartCounts] = {}
    for lease in sorted({lease for one in counts for lease in one}):
        known = [one[lease].files for one in counts if lease in one]
        files = [of_table for of_table in known if of_table is not None]
        if files:
            found[lease] = PartCounts(tuple(file for of_table in files for file in of_table))
    return found
