import re

from dagster_shared.libraries import DagsterLibraryRegistry

from dagster_kinesis import __version__


def test_dagster_knows_the_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)
    assert DagsterLibraryRegistry.get()["dagster-kinesis"] == __version__
