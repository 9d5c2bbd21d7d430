"""A worker finds at once that no Spark server listens at its address."""

import socket
from collections.abc import Iterator

import pytest

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.spark.server_address import _addresses, refuse_unreachable
from kcl_dagster.spark.session import SparkSettings, start_session


@pytest.fixture
def closed() -> Iterator[str]:
    """An address at which no server listens, and no other process can begin to."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
def listening() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("mode", "scheme", "kind"), [("cluster", "spark", "master"), ("connect", "sc", "Connect server")]
)
def test_a_session_without_its_server_is_refused_at_once(mode: str, scheme: str, kind: str, closed: str) -> None:
    with pytest.raises(ConfigurationError, match=f"no Spark {kind} answers at {closed} .*refused"):
        start_session(SparkSettings(mode=mode, url=f"{scheme}://{closed}"), "test")


def test_a_token_is_not_shown(closed: str) -> None:
    with pytest.raises(ConfigurationError, match="no Spark Connect server") as refused:
        refuse_unreachable(f"sc://{closed}/;token=secret", {})
    assert "secret" not in str(refused.value)


def test_one_of_several_masters_is_enough(closed: str, listening: str) -> None:
    refuse_unreachable(f"spark://{closed},{listening}", {})
    with pytest.raises(ConfigurationError, match=f"{closed} .*, {closed} "):
        refuse_unreachable(f"spark://{closed},{closed}", {})


def test_what_is_reached_otherwise_is_not_checked(closed: str) -> None:
    refuse_unreachable("yarn", {})
    refuse_unreachable(f"k8s://https://{closed}", {})
    refuse_unreachable(f"sc://{closed}", {"https_proxy": "http://proxy:3128"})


def test_an_address_has_a_host_and_a_port() -> None:
    assert list(_addresses("sc://connect/;token=a")) == [("connect", 15002)]
    assert list(_addresses("spark://[::1]:7077")) == [("::1", 7077)]
    for wrong in ("spark://master", "spark://master:port", "sc://:15002"):
        with pytest.raises(ConfigurationError, match="host:port"):
            list(_addresses(wrong))
