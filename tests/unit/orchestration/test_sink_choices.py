"""Sinks as users name them: what is refused at once, and where their chains are."""

import errno
from collections.abc import Callable
from dataclasses import fields
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import pytest
from dagster import EnvVar

import kcl_dagster as kcl
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.operations.doctor.rights_probes import CHAINS
from kcl_dagster.orchestration.component_models import SINKS, SinkModel
from kcl_dagster.orchestration.sink_choices import open_staging
from kcl_dagster.orchestration.stores import written_places
from kcl_dagster.runtime import system
from kcl_dagster.spark.sinks.catalog_table import CatalogTable
from kcl_dagster.spark.storage import LocalStore
from kcl_dagster.spark.transform import unchanged


@pytest.mark.parametrize("sink", [kcl.delta, kcl.iceberg])
def test_settings_of_commits_are_checked_when_the_sink_is_named(sink: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"commit_seconds .* must be more than 0, is 0"):
        sink("lake.clicks", commit_seconds=0)


def test_the_place_of_chains_is_checked_as_a_path_is() -> None:
    with pytest.raises(ConfigurationError, match=r"path of kcl\.iceberg\(chains_path"):
        kcl.iceberg("lake.clicks", chains_path="s3:/lake")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: kcl.parquet("/lake", partition_by="page"), r"partition_by is a list of columns: \['page'\]"),
        (lambda: kcl.delta("/lake", partition_by="page"), r"partition_by is a list of columns: \['page'\]"),
        (
            lambda: kcl.delta("web.clicks", writer="spark", chains_path="/chains", partition_by=["week(at)"]),
            "partition_by has 'week",
        ),
        (lambda: kcl.iceberg("lake.clicks", partition_by="page"), r"partition_by is a list of columns: \['page'\]"),
        (lambda: kcl.parquet("/lake", partition_by=["week(at)"]), r"partition_by has 'week\(at\)': name a column"),
        (lambda: kcl.parquet("/lake", partition_by=["bucket(4, page)"]), "partition_by has 'bucket"),
        (lambda: kcl.iceberg("lake.clicks", partition_by=["week(at)"]), r"bucket\(16, ...\) or truncate"),
        (
            lambda: kcl.iceberg("lake.clicks", partition_by=["bucket(0, id)"]),
            r"'bucket\(0, id\)': its number",
        ),
        (lambda: kcl.iceberg("lake.clicks", partition_by=["truncate(0, id)"]), "its number must be 1 to"),
        (lambda: kcl.iceberg("lake.clicks", partition_by=["bucket(2147483648, id)"]), "must be 1 to 2147483647"),
        (
            lambda: kcl.iceberg("lake.clicks", partition_by=["day(at)", "day(at)"]),
            "two entries that make the partition column at_day: remove one",
        ),
        (
            lambda: kcl.iceberg("lake.clicks", partition_by=["bucket(4, id)", "bucket(8, id)"]),
            "partition column id_bucket",
        ),
        (lambda: kcl.delta("/lake", partition_by=["day(at)", "at_day"]), "partition column at_day"),
        (lambda: kcl.parquet("/lake", partition_by=["page", "page"]), "partition column page"),
        (
            lambda: kcl.parquet("abfss://lake@store/clicks"),
            r"path of kcl\.parquet: .* neither a local path nor s3:",
        ),
        (lambda: kcl.iceberg("lake.clicks", chains_path="gs://lake/chains"), "chains_path=.*neither a local path"),
        (lambda: kcl.iceberg("clicks"), "clicks is not of the form database.table"),
        (lambda: kcl.iceberg("lake."), "lake. is not of the form database.table"),
        (
            lambda: kcl.iceberg("prod.lake.clicks", {"type": "glue"}),
            "more than two parts.* which catalog_name sets",
        ),
        (lambda: kcl.delta(""), r"path of kcl\.delta must be a text, .* and is ''"),
        (lambda: kcl.parquet(" "), r"path of kcl\.parquet must be a text, .* and is ' '"),
        (
            lambda: kcl.delta("/lake", commit_seconds="30"),  # type: ignore[arg-type]
            "commit_seconds of kcl.delta must be a number of seconds, is '30'",
        ),
        (
            lambda: kcl.iceberg("lake.clicks", {"type": "gluee"}),
            "pyiceberg has no catalog of type 'gluee': .* glue, hive",
        ),
        (
            lambda: kcl.kcl_consumer(application="clicks", stream="clicks", sink="s3://lake"),  # type: ignore[arg-type]
            r"sink must be kcl\.parquet\(...\), .* and is 's3://lake'",
        ),
        (
            lambda: kcl.kcl_consumer(application="clicks", stream="clicks", sink=[kcl.delta("/lake")]),  # type: ignore[arg-type]
            "sink must be .* or a dict of such sinks by name",
        ),
        (lambda: kcl.delta("main.web.clicks"), r'writer="spark" and chains_path; for a folder, write \./main\.web'),
    ],
)
def test_what_cannot_work_is_refused_when_the_sink_is_named(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        make()


def test_a_place_is_not_refused_for_its_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("s3a://lake/clicks", "file:///lake/clicks", "file:/lake", "./main.web.clicks", "lake.clicks"):
        assert kcl.delta(path).place == path
    assert kcl.iceberg("prod.lake.clicks", {"type": "rest"}).place == "prod.lake.clicks", "databases may be nested"
    monkeypatch.chdir(tmp_path)
    Path("main.web.clicks").mkdir()
    assert kcl.delta("main.web.clicks").place == "main.web.clicks", "a folder that is there is meant"


def test_types_of_catalogs_that_pyiceberg_has_are_taken() -> None:
    from pyiceberg.catalog import CatalogType

    for kind in (*(one.value for one in CatalogType), "GLUE"):
        assert kcl.iceberg("lake.clicks", {"type": kind}).place == "lake.clicks"
    assert kcl.iceberg("lake.clicks", {"type": EnvVar("CATALOG")}).place == "lake.clicks"


def stores(sink: kcl.SinkChoice) -> dict[str, str]:
    application = kcl.Application(name="clicks", streams="clicks")
    found = {name: opened() for name, opened in written_places(application, sink, dict).stores.items()}
    return {name: store.root for name, store in found.items() if store is not None}


def test_the_doctor_looks_where_the_chains_of_each_sink_are(tmp_path: Path) -> None:
    lake = str(tmp_path)
    catalog = {"type": "sql", "uri": f"sqlite:///{lake}/catalog.db", "warehouse": lake}
    assert stores(kcl.parquet(lake)) == {"sink": lake, CHAINS: lake}
    assert stores(kcl.delta(lake)) == {"sink": lake, CHAINS: lake}
    assert stores(kcl.iceberg("lake.clicks", catalog)) == {CHAINS: f"{lake}/lake/clicks"}
    apart = kcl.iceberg("lake.clicks", catalog, chains_path=f"{lake}/apart")
    assert stores(apart) == {CHAINS: f"{lake}/apart"}


@pytest.mark.parametrize("kind", list(SINKS))
def test_each_sink_of_a_component_stages_its_batches(kind: Any) -> None:
    choice = SinkModel(path="lake.clicks", kind=kind).choice()
    assert choice.open is None
    assert choice.open_staging is not None
    assert choice.open_chains is not None


def options(sink: Callable[..., Any]) -> dict[str, Parameter]:
    """All but the first one, which YAML names `path`."""
    return dict(list(signature(sink).parameters.items())[1:])


def plain(default: Any) -> Any:
    return default or None


def test_yaml_says_all_of_a_sink_that_python_says() -> None:
    named = {one.name for one in fields(SinkModel)} - {"path", "kind"}
    assert named == {name for sink in SINKS.values() for name in options(sink)}


@pytest.mark.parametrize("kind", list(SINKS))
def test_what_yaml_leaves_out_of_a_sink_is_as_in_python(kind: Any) -> None:
    left_out = SinkModel("lake.clicks", kind=kind)
    for name, parameter in options(SINKS[kind]).items():
        said = getattr(left_out, name)
        assert said is None or plain(said) == plain(parameter.default), name  # None is not passed on


OTHER: dict[str, Any] = {
    "partition_by": ["day"],
    "storage_options": {"AWS_REGION": "eu-west-1"},
    "catalog": {"type": "glue"},
    "catalog_name": "other",
    "commit_seconds": 7.0,
    "evolve": "add",
    "merge_on": ["id"],
    "delete_when": "op = 'D'",
    "order_by": "version",
    "chains_path": "s3://lake/chains",
    "writer": "spark",
}
"""For each setting a value that is not its default."""


@pytest.mark.parametrize("kind", list(SINKS))
def test_what_yaml_says_of_a_sink_arrives(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    said = {name: OTHER[name] for name in options(SINKS[kind])}

    def sink(path: str, **settings: Any) -> str:
        given.update(path=path, **settings)
        return "made"

    sink.__signature__ = signature(SINKS[kind])  # type: ignore[attr-defined]
    monkeypatch.setitem(SINKS, kind, sink)
    assert SinkModel("lake.clicks", kind=kind, **said).choice() == "made"  # type: ignore[comparison-overlap]
    assert given == {"path": "lake.clicks", **said}


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in SINKS for name in OTHER if name not in options(SINKS[kind])]
)
def test_yaml_is_refused_what_its_kind_of_sink_does_not_take(kind: Any, name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"sink\.{name}: kcl\.{kind} takes none"):
        SinkModel("lake.clicks", kind=kind, **{name: OTHER[name]}).choice()


def refused(path: Path, target: Path) -> None:
    raise OSError(errno.EPERM, "Operation not permitted", str(path), None, str(target))


@pytest.mark.parametrize("make", [kcl.parquet, kcl.delta])
def test_a_place_that_cannot_keep_chains_is_refused_when_the_sink_is_opened(
    make: Callable[[str], kcl.SinkChoice], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a lease names a chain there, which no other setting of the sink could end."""
    choice = make(str(tmp_path))
    assert open_staging(choice, unchanged, {}, system()) is not None
    monkeypatch.setattr(Path, "hardlink_to", refused)
    with pytest.raises(ConfigurationError, match=r"without hard links .*: use one that has them, or S3"):
        open_staging(choice, unchanged, {}, system())


def test_a_store_that_is_away_for_a_moment_keeps_no_worker_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(self: LocalStore, path: str, content: bytes) -> bool:
        raise OSError(errno.EIO, "Input/output error", self.root, None, path + str(content))

    monkeypatch.setattr(LocalStore, "create", away)
    assert open_staging(kcl.parquet(str(tmp_path)), unchanged, {}, system()) is not None


def test_an_iceberg_table_where_no_chains_can_be_kept_is_refused_with_what_to_do(tmp_path: Path) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": "gs://lake/tables"}
    with pytest.raises(ConfigurationError, match=r"gs://lake/.*give a chains_path in a directory or on S3"):
        open_staging(kcl.iceberg("lake.clicks", catalog), unchanged, {}, system())
    apart = kcl.iceberg("lake.clicks", catalog, chains_path=str(tmp_path / "chains"))
    assert open_staging(apart, unchanged, {}, system()) is not None


def test_a_catalog_without_a_place_for_a_new_table_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """Not retried like an outage: pyiceberg says of this only that no path is set."""
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    said = (
        r"""lake\.clicks does not exist, and catalog default has no location.*"warehouse": "s3://bucket/prefix".*"""
    )
    with pytest.raises(ConfigurationError, match=said):
        open_staging(kcl.iceberg("lake.clicks", catalog), unchanged, {}, system())


def test_a_database_with_a_location_needs_no_warehouse(tmp_path: Path) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    CatalogTable("lake.clicks", catalog).catalog.create_namespace("lake", {"location": f"{tmp_path}/lake"})
    opened = open_staging(kcl.iceberg("lake.clicks", catalog), unchanged, {}, system())
    assert opened is not None
    assert opened.entries.files.root == f"{tmp_path}/lake/clicks"
