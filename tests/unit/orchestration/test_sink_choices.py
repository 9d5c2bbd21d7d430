"""Sinks as users name them: what is refused at once, and where their chains are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kcl_dagster as kcl
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.operations.doctor.rights import CHAINS
from kcl_dagster.orchestration.component import SinkModel
from kcl_dagster.orchestration.stores import written_stores


@pytest.mark.parametrize("sink", [kcl.delta, kcl.iceberg])
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"commit": "chain"}, "'chain' is none of leases, chains"),
        ({"commit": "chains", "commit_seconds": 0}, "commit_seconds .* must be more than 0, is 0"),
    ],
)
def test_settings_of_commits_are_checked_when_the_sink_is_named(
    sink: Callable[..., Any], settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        sink("lake.clicks", **settings)


def test_the_place_of_chains_is_checked_as_a_path_is() -> None:
    with pytest.raises(ConfigurationError, match=r"path of kcl\.iceberg\(chains_path"):
        kcl.iceberg("lake.clicks", commit="chains", chains_path="s3:/lake")


def stores(sink: kcl.SinkChoice) -> dict[str, str]:
    application = kcl.Application(name="clicks", streams="clicks")
    found, _ = written_stores(application, sink, dict)
    return {name: opened().root for name, opened in found.items()}


def test_the_doctor_looks_where_the_chains_of_each_sink_are(tmp_path: Path) -> None:
    lake = str(tmp_path)
    catalog = {"type": "sql", "uri": f"sqlite:///{lake}/catalog.db", "warehouse": lake}
    assert stores(kcl.parquet(lake, commit="chains")) == {"sink": lake, CHAINS: lake}
    assert stores(kcl.delta(lake, commit="chains")) == {"sink": lake, CHAINS: lake}
    assert stores(kcl.iceberg("lake.clicks", catalog, commit="chains")) == {CHAINS: f"{lake}/lake/clicks"}
    apart = kcl.iceberg("lake.clicks", catalog, commit="chains", chains_path=f"{lake}/apart")
    assert stores(apart) == {CHAINS: f"{lake}/apart"}
    assert stores(kcl.iceberg("lake.clicks", catalog)) == {}


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_a_component_may_decide_its_batches_in_chains_with_every_sink(kind: Any) -> None:
    choices = [SinkModel(path="lake.clicks", kind=kind, commit=commit).choice() for commit in ("leases", "chains")]
    assert [choice.open_staging is not None for choice in choices] == [False, True]
