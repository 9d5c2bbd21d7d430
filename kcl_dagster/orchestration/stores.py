"""The stores to which the workers of an application write files. Used by the doctor, and to make IAM policies and
cost estimates.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

from kcl_dagster.application import Application
from kcl_dagster.operations.cost import StoredIn, Storing
from kcl_dagster.operations.doctor.rights_probes import CHAINS, SINK
from kcl_dagster.operations.rights import Catalogs
from kcl_dagster.operations.written_places import WrittenPlaces
from kcl_dagster.orchestration.sink_choices import SinkChoice
from kcl_dagster.spark.storage import S3Options, Store, open_store

T = TypeVar("T")


def written_places(
    application: Application, sink: SinkChoice | None, connection: Callable[[], Mapping[str, str]]
) -> WrittenPlaces:
    """Return the places to which the workers write. `connection` returns the connection to S3.

    Nothing is opened, and no connection is made, before one of the functions in the result is called.
    """

    def opener(place: str) -> Callable[[], Store]:
        return lambda: open_store(place, S3Options(**connection()))

    stores: dict[str, Callable[[], Store | None]] = {}
    tables: dict[str, Callable[[], str]] = {}
    why = "an Application alone has no sink: name the consumer or the definitions"
    if sink is not None:
        left_out = []
        for name, table in sink.each.items():
            check = f"{SINK} {name}".strip()
            if table.kind in ("parquet", "deltalake") and not table.is_in_catalog:
                stores[check] = opener(table.place)
            else:
                told = f"a sink of the kind {table.kind} cannot be asked without writing to it: {table.place}"
                left_out.append(f"{name}: {told}" if name else told)
            if table.about_table is not None:
                tables[check] = partial(_with_connection, table.about_table, connection)
        why = "; ".join(left_out)
        if sink.open_chains is not None:
            stores[CHAINS] = partial(_with_connection, sink.open_chains, connection)
    letters = application.batch.failure.dead_letter_path
    if letters is not None:
        stores["dead letters"] = opener(letters)
    return WrittenPlaces(stores, tables, why)


def catalogs_of(sink: SinkChoice) -> Catalogs:
    """The Iceberg tables of a sink whose catalogs require rights in AWS: Glue, and REST catalogs with signed
    requests. If the properties of a catalog are set in pyiceberg's own configuration and not in the code, the
    catalog's tables are missing in the result."""
    named = {one.place: one.catalog or {} for one in sink.each.values() if one.kind == "iceberg"}
    return Catalogs(
        in_glue=tuple(table for table, catalog in named.items() if catalog.get("type") == "glue"),
        signed=tuple(
            table for table, catalog in named.items() if catalog.get("rest.sigv4-enabled", "").lower() == "true"
        ),
    )


def storing_of(sink: SinkChoice) -> Storing:
    """The properties of a sink that an estimate of costs needs. Of a table in a catalog, only the name is known, so
    such a table is assumed to be on S3."""
    found = [_stored_in(one) for one in sink.each.values()]
    storing = Storing(
        "folder" if "folder" in found else "table" if "table" in found else "other",  # a folder costs most
        is_compacted=bool(sink.compacted) and found != ["other"] * len(found),
        announces_batches=sink.open_staging is None,
        outputs=len(found),
        committed=found.count("table") if sink.tables else None,
    )
    return storing if sink.commit_seconds is None else replace(storing, commit_seconds=sink.commit_seconds)


def _stored_in(sink: SinkChoice) -> StoredIn:
    if sink.place.startswith(("s3://", "s3a://")):
        return "folder" if sink.kind == "parquet" else "table"
    return "table" if sink.is_in_catalog else "other"


def _with_connection(look: Callable[[Mapping[str, str]], T], connection: Callable[[], Mapping[str, str]]) -> T:
    return look(connection())
