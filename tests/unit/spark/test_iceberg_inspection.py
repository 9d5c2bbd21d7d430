"""What the doctor and the policies find of an Iceberg table, and that they change nothing in its catalog."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyiceberg.catalog
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.utils.config import Config

from kcl_dagster.errors import ConfigurationError, SinkError
from kcl_dagster.model.change_rules import ChangeRules
from kcl_dagster.spark.sinks.chain_folder import ChainFolder
from kcl_dagster.spark.sinks.iceberg_inspection import InspectedTable

ROWS = pa.schema([("id", pa.int64())])


def properties(folder: Path, **more: str) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"{folder}/warehouse", **more}


def inspected(folder: Path, name: str = "lake.clicks", **more: str) -> InspectedTable:
    return InspectedTable(name, properties(folder, **more))


@pytest.fixture
def made(tmp_path: Path) -> Iterator[SqlCatalog]:
    """A catalog with a database and no table."""
    catalog = load_catalog("default", **properties(tmp_path))
    assert isinstance(catalog, SqlCatalog)
    catalog.create_namespace("lake")
    yield catalog
    catalog.engine.dispose()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("uri", ["sqlite:///{}/catalog.db", "sqlite:///file:{}/catalog.db?uri=true"])
def test_the_file_of_a_catalog_is_not_made(tmp_path: Path, uri: str) -> None:
    table = inspected(tmp_path, uri=uri.format(tmp_path))
    assert table.about(None, None) == (
        f"iceberg table lake.clicks does not exist; the first batch makes it, at {tmp_path}/warehouse/lake/clicks"
    )
    assert ChainFolder(table).store.root == f"{tmp_path}/warehouse/lake/clicks"
    assert list(tmp_path.iterdir()) == []


def test_the_type_and_the_address_may_be_in_the_configuration_of_pyiceberg(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__WAREHOUSE", f"{tmp_path}/warehouse")
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())  # pyiceberg reads it once in a process
    table = InspectedTable("lake.clicks", catalog_name="prod")
    assert "does not exist" in table.about(None, None)
    assert list(tmp_path.iterdir()) == []


def test_neither_the_tables_of_a_catalog_nor_its_databases_are_made(tmp_path: Path, made: SqlCatalog) -> None:
    (tmp_path / "empty").mkdir()
    sqlite3.connect(tmp_path / "empty" / "catalog.db").close()
    (tmp_path / "empty" / "catalog.db").touch()
    before = contents(tmp_path)
    for table in (inspected(tmp_path / "empty"), inspected(tmp_path), inspected(tmp_path, "other.clicks")):
        assert "does not exist; the first batch makes it, at" in table.about(None, None)
        assert ChainFolder(table).store.root.endswith("/clicks")
    assert contents(tmp_path) == before
    assert made.list_namespaces() == [("lake",)]


def test_a_catalog_of_an_older_version_remains_as_it_is(tmp_path: Path, made: SqlCatalog) -> None:
    with closing(sqlite3.connect(tmp_path / "catalog.db")) as database:
        database.execute("alter table iceberg_tables drop column iceberg_type")
    before = contents(tmp_path)
    assert "does not exist" in inspected(tmp_path, schema_version="v1").about(None, None)
    assert contents(tmp_path) == before


def test_a_table_is_found_with_its_place(tmp_path: Path, made: SqlCatalog) -> None:
    made.create_table("lake.clicks", ROWS, location=f"{tmp_path}/elsewhere")
    before = contents(tmp_path)
    assert inspected(tmp_path).about(None, None) == f"iceberg table lake.clicks is at {tmp_path}/elsewhere"
    assert contents(tmp_path) == before


def test_a_table_that_the_sink_refuses_is_found(tmp_path: Path, made: SqlCatalog) -> None:
    made.create_table("lake.clicks", ROWS)
    with pytest.raises(SinkError, match=r"merge_on names \['key'\]"):
        inspected(tmp_path).about(None, ChangeRules(("key",)))


def test_a_table_that_could_not_be_made_is_found(tmp_path: Path, made: SqlCatalog) -> None:
    nowhere = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    for name in ("lake.clicks", "other.clicks"):
        with pytest.raises(ConfigurationError, match="no location for new tables"):
            InspectedTable(name, nowhere).about(None, None)
    assert made.list_namespaces() == [("lake",)]


def test_an_address_that_nothing_answers_at_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="Iceberg catalog default cannot be used"):
        InspectedTable("lake.clicks", {"type": "sql", "uri": f"sqlite:///{tmp_path}"})
