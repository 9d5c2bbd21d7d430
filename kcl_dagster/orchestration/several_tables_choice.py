"""Several tables of one consumer, as a user configures them: `sink={"orders": kcl.delta(...), "rejects": ...}`."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.orchestration.sink_choices import Connection, SinkChoice, Transform

if TYPE_CHECKING:
    from kcl_dagster.spark.sinks.contract import SparkSink

KIND: Final = "table"
_NAME: Final = re.compile(r"[A-Za-z0-9_]+")  # the rule of Dagster for parts of an asset's key


def several_tables(tables: Mapping[str, SinkChoice]) -> SinkChoice:
    """The sink of a consumer whose function returns a DataFrame for each of these names.

    Raises ConfigurationError for

    - a name that no asset can have,
    - a sink that does not commit its batches in chains (logs of committed batches beside the data),
    - two sinks at the same place.
    """
    if not tables:
        raise ConfigurationError("sink: a mapping of tables needs one at least, such as {'orders': kcl.delta(...)}")
    given: Mapping[Any, Any] = tables
    for name, choice in given.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigurationError(f"sink: {name!r} is no name of a table: use letters, digits and underscores")
        if not isinstance(choice, SinkChoice) or choice.open_staging is None:
            raise ConfigurationError(
                f"sink: {name} must be kcl.parquet, kcl.delta or kcl.iceberg: no other sink can store a batch "
                "together with other tables or not at all"
            )
        if choice.tables:
            raise ConfigurationError(f"sink: {name} is a mapping itself: name all tables in one")
    _refuse_shared(tables)
    commits = [one.commit_seconds for one in tables.values() if one.commit_seconds is not None]
    batches = [one.batch_seconds for one in tables.values() if one.batch_seconds is not None]
    is_left_open = any(one.with_commit_seconds is not None for one in tables.values())
    first = next(iter(tables.values()))

    def again(seconds: float) -> SinkChoice:
        return several_tables(
            {
                name: one if one.with_commit_seconds is None else one.with_commit_seconds(seconds)
                for name, one in tables.items()
            }
        )

    def open_staging(transform: Transform, s3: Connection) -> "SparkSink":
        from kcl_dagster.spark.sinks.several_tables import SeveralTables

        def opener(choice: SinkChoice) -> Any:
            return lambda of_table: None if choice.open_staging is None else choice.open_staging(of_table, s3)

        return SeveralTables({name: opener(choice) for name, choice in tables.items()}, transform)

    return SinkChoice(
        KIND,
        ", ".join(f"{name}: {choice.place}" for name, choice in tables.items()),
        open_staging=open_staging,
        open_chains=first.open_chains,
        commit_seconds=min(commits, default=None),
        with_commit_seconds=again if is_left_open else None,
        batch_seconds=max(batches, default=None),
        tables=dict(tables),
    )


def _refuse_shared(tables: Mapping[str, SinkChoice]) -> None:
    catalogs = {name: choice.identity for name, choice in tables.items() if choice.is_in_catalog}
    folders = {name: _root(choice.place) for name, choice in tables.items() if not choice.is_in_catalog}
    for places in (catalogs, folders):
        owners: dict[str, str] = {}
        for name, place in places.items():
            other = owners.setdefault(place, name)
            if other != name:
                raise ConfigurationError(
                    f"sink: {other} and {name} are both at {tables[name].place}: give each its own"
                )
    for outer, above in folders.items():
        for inner, below in folders.items():
            if below.startswith(f"{above}/"):
                raise ConfigurationError(f"sink: {inner} at {below} is below the folder of {outer}, {above}")


def _root(place: str) -> str:
    """The root of a place, which is the same for all spellings of the place."""
    from kcl_dagster.spark.storage import LocalStore, open_store

    store = open_store(place)
    return str(Path(store.root).resolve()) if isinstance(store, LocalStore) else store.root.rstrip("/")
