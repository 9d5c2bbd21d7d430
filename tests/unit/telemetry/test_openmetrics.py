"""What a scraper gets."""

import http.client
import socket
import struct
import threading
from contextlib import ExitStack, closing, suppress
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.telemetry.endpoint import MOST_CONNECTIONS, MetricsEndpoint
from kcl_dagster.telemetry.openmetrics import CONTENT_TYPE, Family, MetricsRegistry
from tests.unit.telemetry.openmetrics import parse

pytestmark = pytest.mark.slow

READ = Family("kcl_read", "counter", "Things read.")
BEHIND = Family("kcl_behind_seconds", "gauge", 'How far "behind"\nit is \\ was.', "seconds")
ABOUT = Family("kcl_worker", "info", "Which worker this is.")


def registry() -> MetricsRegistry:
    return MetricsRegistry({"application": "orders-app", "worker": 'w"1\\'})


def test_an_empty_board_is_a_valid_page() -> None:
    assert parse(registry().render()).samples == {}


def test_a_page_has_types_units_help_and_escaped_labels() -> None:
    shown = registry()
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
    shown = registry()
    shown.set(BEHIND, 1, lease="a")
    shown.forget(BEHIND, lease="a")
    shown.forget(BEHIND, lease="never there")
    assert parse(shown.render()).samples == {}


def test_the_page_is_served_while_the_block_lasts() -> None:
    shown = registry()
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
    with MetricsEndpoint(registry().render, "127.0.0.1", 0) as endpoint:
        host, port = endpoint.url.split("/")[2].split(":")
        with socket.create_connection((host, int(port)), timeout=10), urlopen(endpoint.url, timeout=10) as answer:
            assert answer.status == 200


def dripping(endpoint: MetricsEndpoint) -> socket.socket:
    """A client that has begun a request and does not end it."""
    host, port = endpoint.url.split("/")[2].split(":")
    client = socket.create_connection((host, int(port)), timeout=10)
    client.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
    return client


@pytest.mark.audit("D8")
def test_clients_cannot_take_more_than_a_fixed_number_of_connections_and_no_threads() -> None:
    with MetricsEndpoint(registry().render, "127.0.0.1", 0) as endpoint, ExitStack() as clients:
        before = set(threading.enumerate())
        slow = [clients.enter_context(dripping(endpoint)) for _ in range(MOST_CONNECTIONS * 3)]
        with urlopen(endpoint.url, timeout=10) as answer:
            assert answer.status == 200
        assert not set(threading.enumerate()) - before  # threads of other tests may have ended meanwhile
        for client in slow[:MOST_CONNECTIONS]:  # the oldest made way
            assert ended(client)


def ended(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.audit("D8")
@pytest.mark.parametrize("request_text", [b"", b"more\r\nX-Slower: a"])
def test_a_client_that_sends_slowly_is_cut_off(request_text: bytes) -> None:
    with (
        MetricsEndpoint(registry().render, "127.0.0.1", 0, request_seconds=0.05) as endpoint,
        dripping(endpoint) as client,
    ):
        with suppress(OSError):  # it may have been cut off already
            client.sendall(request_text)
        assert ended(client)


@pytest.mark.audit("D8")
@pytest.mark.parametrize(
    "request_text",
    [b"", b"GET /metr", b"GET /metrics HTTP/1.1\r\n\r\n", b"\x16\x03\x01\r\n\r\n", b"a" * 20_000 + b"\r\n\r\n"],
)
def test_a_client_that_hangs_up_leaves_no_traceback(
    request_text: bytes, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with MetricsEndpoint(registry().render, "127.0.0.1", 0) as endpoint:
        host, port = endpoint.url.split("/")[2].split(":")
        for _ in range(20):
            with socket.create_connection((host, int(port)), timeout=10) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close by reset
                client.sendall(request_text)
        with urlopen(endpoint.url, timeout=10) as answer:
            assert answer.status == 200
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


@pytest.mark.audit("D8")
@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("POST", 405)])
def test_other_methods(method: str, status: int) -> None:
    shown = registry()
    shown.declare(READ)
    with (
        MetricsEndpoint(shown.render, "127.0.0.1", 0) as endpoint,
        closing(http.client.HTTPConnection(endpoint.url.split("/")[2], timeout=10)) as client,
    ):
        client.request(method, "/metrics")
        answer = client.getresponse()
        assert (answer.status, answer.read()) == (status, b"")


def test_a_port_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"metrics cannot be served at 127.0.0.1:{port}"):
            MetricsEndpoint(registry().render, "127.0.0.1", port)


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
