"""What a scraper gets."""

import http.client
import socket
from contextlib import closing
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.telemetry.board import CONTENT_TYPE, Board, Family
from kcl_dagster.telemetry.endpoint import MetricsEndpoint
from tests.unit.telemetry.openmetrics import parse

READ = Family("kcl_read", "counter", "Things read.")
BEHIND = Family("kcl_behind_seconds", "gauge", 'How far "behind"\nit is \\ was.', "seconds")
ABOUT = Family("kcl_worker", "info", "Which worker this is.")


def board() -> Board:
    return Board({"application": "orders-app", "worker": 'w"1\\'})


def test_an_empty_board_is_a_valid_page() -> None:
    assert parse(board().render()).samples == {}


def test_a_page_has_types_units_help_and_escaped_labels() -> None:
    shown = board()
    shown.declare(READ)
    shown.add(READ, 2, shard="a")
    shown.add(READ, 3, shard="a")
    shown.add(READ, 0.5, shard="b\n")
    shown.set(BEHIND, 1.25, lease="a")
    shown.set(BEHIND, float("inf"), lease="b")
    shown.set(ABOUT, 1, version="1.0")
    page = parse(shown.render())
    assert page.kinds == {"kcl_read": "counter", "kcl_behind_seconds": "gauge", "kcl_worker": "info"}
    assert page.value("kcl_read_total", shard="a") == 5
    assert page.value("kcl_read_total", shard="b\\n") == 0.5
    assert page.value("kcl_behind_seconds", lease="a") == 1.25
    assert page.value("kcl_worker_info", version="1.0", worker='w\\"1\\\\') == 1


def test_a_gauge_whose_subject_is_gone_is_gone() -> None:
    shown = board()
    shown.set(BEHIND, 1, lease="a")
    shown.forget(BEHIND, lease="a")
    shown.forget(BEHIND, lease="never there")
    assert parse(shown.render()).samples == {}


def test_the_page_is_served_while_the_block_lasts() -> None:
    shown = board()
    shown.declare(READ)
    with MetricsEndpoint(shown.render, "127.0.0.1", 0) as endpoint:
        with urlopen(endpoint.url, timeout=10) as answer:
            assert answer.headers["Content-Type"] == CONTENT_TYPE
            assert parse(answer.read().decode()).value("kcl_read_total") == 0
        with pytest.raises(HTTPError, match="404") as refusal:
            urlopen(endpoint.url.replace("/metrics", "/other"), timeout=10)
        refusal.value.close()
        host, port = endpoint.url.split("/")[2].split(":")
    with closing(http.client.HTTPConnection(host, int(port), timeout=2)) as gone, pytest.raises(OSError):  # noqa: PT011
        gone.request("GET", "/metrics")


def test_a_scraper_that_says_nothing_holds_nobody_up() -> None:
    with MetricsEndpoint(board().render, "127.0.0.1", 0) as endpoint:
        host, port = endpoint.url.split("/")[2].split(":")
        with socket.create_connection((host, int(port)), timeout=10), urlopen(endpoint.url, timeout=10) as answer:
            assert answer.status == 200


def test_a_port_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"metrics cannot be served at 127.0.0.1:{port}"):
            MetricsEndpoint(board().render, "127.0.0.1", port)


BROKEN = {
    "no end": "# TYPE a gauge\na 1\n",
    "a counter without its suffix": "# TYPE a counter\na 1\n# EOF\n",
    "a family in two places": "# TYPE a gauge\na 1\n# TYPE b gauge\nb 1\n# TYPE a gauge\na 2\n# EOF\n",
    "a sample twice": '# TYPE a gauge\na{x="1"} 1\na{x="1"} 2\n# EOF\n',
    "a unit that is not in the name": "# TYPE a gauge\n# UNIT a seconds\na 1\n# EOF\n",
    "no number": "# TYPE a gauge\na one\n# EOF\n",
    "an open quote": '# TYPE a gauge\na{x="1} 1\n# EOF\n',
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_reader_of_these_tests_is_strict(name: str) -> None:
    with pytest.raises(AssertionError):
        parse(BROKEN[name])
