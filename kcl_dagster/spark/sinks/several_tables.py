"""Several tables of one consumer: its function returns a DataFrame for each, by name.

A batch is decided for all of them by one entry, in the chain beside the first table. So it becomes visible in all
tables or in none, whatever formats they have. Readers may see it in one table before they see it in another one.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame

from kcl_dagster.chains.entry import FIRST, TableOutput
from kcl_dagster.chains.publication import discard
from kcl_dagster.chains.store import Entries
from kcl_dagster.errors import KclError, TransformError
from kcl_dagster.model.claim import ChainId
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.spark.batch_records import Records
from kcl_dagster.spark.sinks.contract import SparkSink
from kcl_dagster.spark.storage import Store
from kcl_dagster.spark.transform import Transform, guarded
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.batch import Batch, PartCounts
from kcl_dagster.worker.processing_watch import uninterrupted
from kcl_dagster.worker.staging import Destination, FormerParts, StagedBatch

OutputsTransform = Callable[[DataFrame], Mapping[str, DataFrame]]
"""User code: from the records of a batch to what is stored, by table."""


@dataclass(slots=True)
class _Outputs:
    """What the function returns for the records of one batch. Each table takes its own: the function runs once."""

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
        return found


class SeveralTables:
    """Stages batches for several sinks. `opened`: makes the sink of each table, given a function from the records
    to the rows of this table. The chains are beside the first one."""

    def __init__(self, opened: Mapping[str, Callable[[Transform], SparkSink]], transform: OutputsTransform) -> None:
        called: Any = guarded(transform)  # type: ignore[arg-type]
        self._outputs = _Outputs(called, tuple(opened))
        self.sinks = {name: open_sink(self._outputs.of(name)) for name, open_sink in opened.items()}
        self._first = next(iter(self.sinks.values()))

    def _by_key(self) -> dict[str, SparkSink]:
        """As entries name the tables."""
        return dict(zip([FIRST, *list(self.sinks)[1:]], self.sinks.values(), strict=True))

    @property
    def stores_into(self) -> tuple[Store, ...]:
        """See `spark.sinks.contract.SparkSink`."""
        return tuple(store for sink in self.sinks.values() for store in sink.stores_into)

    @property
    def entries(self) -> Entries:
        """See `worker.staging.StagingSink`."""
        return self._first.entries

    @property
    def destinations(self) -> dict[str, Destination]:
        """See `worker.staging.StagingSink`."""
        return {key: sink.destinations[FIRST] for key, sink in self._by_key().items()}

    @property
    def former_parts(self) -> FormerParts:
        """See `worker.staging.StagingSink`. Versions that had any knew one table only."""
        return self._first.former_parts

    def version(self) -> dict[str, Any]:
        """See `spark.sinks.contract.SparkSink`. Each table is asked by itself."""
        return {}

    def staging(self) -> None:
        """See `spark.engine.StagingOfFetches`. A fetch does not know which records belong to which table."""

    def keep_complete(self, application: str, known: WrittenThrough, wanted: int) -> None:
        """See `worker.staging.StagingSink`."""
        problems: list[Exception] = []
        for sink in self.sinks.values():
            try:
                sink.keep_complete(application, known, wanted)
            except Exception as error:  # of one store; the others are asked all the same
                problems.append(error)
        if problems:
            raise problems[0]

    def begin_reading(self, chain: ChainId, time_column: str | None) -> None:
        """See `worker.staging.StagingSink`. Fetches stage nothing."""

    def stage(self, data: Records, batch: Batch, chain: ChainId, number: int) -> StagedBatch:
        """See `worker.staging.StagingSink.stage`."""
        staged: dict[str, StagedBatch] = {}
        try:
            for key, sink in self._by_key().items():
                staged[key] = sink.stage(data, batch, chain, number)
        except BaseException:
            with uninterrupted():
                self._discard(chain, staged)
            raise
        finally:
            self._outputs.forget()
        first = staged.pop(FIRST)
        return StagedBatch(
            first.files,
            _together([first.counts, *(one.counts for one in staged.values())]),
            first.rules,
            {key: TableOutput(one.files, one.rules) for key, one in staged.items()},
        )

    def _discard(self, chain: ChainId, staged: Mapping[str, StagedBatch]) -> None:
        """Remove what was staged for the tables before the one that failed. What cannot be removed now is removed
        with the chain, or by a vacuum of the table."""
        for key, batch in staged.items():
            place, paths = self.destinations[key], [file.path for file in batch.files]
            with suppress(KclError, OSError):
                if place.commits is None:
                    discard(place.files, chain, paths)
                else:
                    place.commits.table.discard(paths)


def _together(counts: list[Mapping[LeaseKey, PartCounts]]) -> dict[LeaseKey, PartCounts]:
    """What all tables hold of each lease. A lease is left out if that is not known of one of them."""
    leases = set(counts[0]).intersection(*counts[1:])
    found: dict[LeaseKey, PartCounts] = {}
    for lease in sorted(leases):
        parts = [one[lease] for one in counts]
        files = [part.files for part in parts if part.files is not None]
        if len(files) == len(parts):
            found[lease] = PartCounts(tuple(file for of_table in files for file in of_table))
    return found
