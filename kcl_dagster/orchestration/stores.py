"""The stores to which the workers of an application write files, for the doctor, the policies and cost
estimates.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from kcl_dagster.application import Application
from kcl_dagster.operations.cost import StoredIn, Storing
from kcl_dagster.operations.doctor.rights_probes import CHAINS, SINK
from kcl_dagster.operations.rights import Catalogs
from kcl_dagster.orchestration.sink_choices import OpenStore, SinkChoice
from kcl_dagster.spark.storage import S3Options, Store, open_store


def written_stores(
    application: Application, sink: SinkChoice | None, connection: Callable[[], Mapping[str, str]]
) -> tuple[dict[str, Callable[[], Store]], str]:
    """Return the stores, by name, each as a function that opens the store. Also returns the reason why the sink, or
    one of its tables, is not among the stores; empty if all of them are. `connection` returns the connection to S3.

    Nothing is opened, and no connection is made, before one of these functions is called.
    """

    def opener(place: str) -> Callable[[], Store]:
        return lambda: open_store(place, S3Options(**connection()))

    stores: dict[str, Callable[[], Store]] = {}
    why = "an Application alone has no sink: name the consumer or the definitions"
    if sink is not None:
        left_out = []
        for name, table in sink.each.items():
            if table.kind in ("parquet", "deltalake") and not table.is_in_catalog:
                stores[f"{SINK} {name}".strip()] = opener(table.place)
            else:
                told = f"a sink of the kind {table.kind} cannot be asked without writing to it: {table.place}"
                left_out.append(f"{name}: {told}" if name else told)
        why = "; ".join(left_out)
        if sink.open_chains is not None:
            stores[CHAINS] = partial(_opened, sink.open_chains, connection)
    letters = application.batch.failure.dead_letter_path
    if letters is not None:
        stores["dead letters"] = opener(letters)
    return stores, why


def catalogs_of(sink: SinkChoice) -> Catalogs:
    """The Iceberg tables of a sink whose catalogs check rights of AWS, as far as the code shows the type of the
    catalog. The type can also be in pyiceberg's own configuration."""
    named = {one.place: one.catalog or {} for one in sink.each.values() if one.kind == "iceberg"}
    return Catalogs(
        in_glue=tuple(table for table, catalog in named.items() if catalog.get("type") == "glue"),
        signed=tuple(
            table for table, catalog in named.items() if catalog.get("rest.sigv4-enabled", "").lower() == "true"
        ),
    )


def storing_of(sink: SinkChoice) -> Storing:
    """The properties of a sink that an estimate needs. Of a table in a catalog, only the name is known, so such a
    table is assumed to be on S3."""
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


def _opened(open_store_of: OpenStore, connection: Callable[[], Mapping[str, str]]) -> Store:
    return open_store_of(connection())
