"""The ECS metadata endpoint is asked directly and in the background."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from kcl_dagster.worker.utilization.ecs import EcsProbe, read_json
from kcl_dagster.worker.utilization.probe import Unmeasurable

CONTAINER = {"DockerId": "me", "Limits": {"CPU": 2}}
TASK = {"Containers": [CONTAINER], "Limits": {"CPU": 1}}


def stats(used: int) -> dict[str, Any]:
    return {
        "cpu_stats": {"cpu_usage": {"total_usage": used}, "system_cpu_usage": 200, "online_cpus": 1},
        "precpu_stats": {"cpu_usage": {"total_usage": 10}, "system_cpu_usage": 100},
    }


class Agent:
    """The endpoint's documents, read when the test says so."""

    def __init__(self) -> None:
        self.used = 60
        self.is_away = False
        self.waiting: list[Callable[[], None]] = []
        self.probe = EcsProbe("http://agent", self.read, self.waiting.append)

    def read(self, address: str) -> Mapping[str, Any]:
        if self.is_away:
            raise TimeoutError("timed out")
        return {"/stats": stats(self.used), "/task": TASK}.get(address.removeprefix("http://agent"), CONTAINER)

    def answer(self) -> None:
        self.waiting.pop()()


@pytest.mark.audit("D12")
def test_a_reading_never_waits_for_the_endpoint() -> None:
    agent = Agent()
    assert agent.probe.percent() == 50.0  # the trial at start
    for _ in range(3):
        with pytest.raises(Unmeasurable, match="no answer yet"):
            agent.probe.percent()
    assert len(agent.waiting) == 1
    agent.used = 35
    agent.answer()
    assert agent.probe.percent() == 25.0


@pytest.mark.audit("D12")
def test_an_endpoint_that_fails_is_no_reading() -> None:
    agent = Agent()
    agent.probe.percent()
    agent.is_away = True
    with pytest.raises(Unmeasurable, match="no answer yet"):
        agent.probe.percent()
    agent.answer()
    with pytest.raises(Unmeasurable, match="timed out"):
        agent.probe.percent()


class _Documents(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"path": self.path}).encode())

    def log_message(self, *_: object) -> None:
        """Nothing to standard error."""


@pytest.fixture
def address() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Documents)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(30)


@pytest.mark.audit("D12")
def test_the_endpoint_is_not_asked_through_a_proxy(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert read_json(f"{address}/stats") == {"path": "/stats"}
