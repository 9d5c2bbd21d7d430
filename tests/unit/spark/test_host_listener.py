"""Clients that prove nothing take neither threads without bound nor the place of hosts, at any address."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import pytest

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.runtime import system
from kcl_dagster.spark.processor_hosts.certificate import Certificate
from kcl_dagster.spark.processor_hosts.handshakes import MOST_OPEN
from kcl_dagster.spark.processor_hosts.host_connection import HostConnection
from kcl_dagster.spark.processor_hosts.host_listener import HostListener
from kcl_dagster.spark.processor_hosts.line import Line
from kcl_dagster.spark.processor_hosts.messages import Hello

CERTIFICATE, SECRET = Certificate.new(), b"the secret of a session"
PATIENCE = 20.0


class Hosts:
    """The hosts that a listener has accepted."""

    def __init__(self) -> None:
        self._connections: list[HostConnection] = []
        self._changed = threading.Condition()

    def __call__(self, connection: HostConnection) -> None:
        with self._changed:
            self._connections.append(connection)
            self._changed.notify_all()

    def has(self, number: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: number in {one.host for one in self._connections}, PATIENCE)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


@contextmanager
def listening(host: str = "127.0.0.1", **seconds: float) -> Iterator[tuple[HostListener, Hosts]]:
    hosts = Hosts()
    listener = HostListener(host, 0, CERTIFICATE, SECRET, hosts, **seconds)
    with closing(hosts), closing(listener):
        yield listener, hosts


def connects(listener: HostListener, hosts: Hosts, number: int, address: str = "127.0.0.1") -> bool:
    with Line.connect((address, listener.port), CERTIFICATE.certificate, SECRET) as line:
        line.send(Hello(number))
        return hosts.has(number)


def handshake_threads() -> int:
    return sum(thread.name == "kcl-host-handshake" for thread in threading.enumerate())


def stranger(listener: HostListener) -> socket.socket:
    return socket.create_connection(("127.0.0.1", listener.port), PATIENCE)


def test_strangers_take_a_bounded_number_of_threads_and_a_host_still_connects() -> None:
    """Each stranger has a minute; the oldest ones lose it when others wait."""
    with listening(handshake_seconds=60.0, least_seconds=0.05) as (listener, hosts), ExitStack() as strangers:
        threads = []
        for _ in range(2 * MOST_OPEN):
            strangers.enter_context(closing(stranger(listener)))
            threads.append(handshake_threads())
        assert connects(listener, hosts, 7)
        # On a busy machine, some threads whose handshake is over have not ended yet. Without a limit there are 128.
        assert 1 < max(threads) < MOST_OPEN * 3 / 2


def test_strangers_keep_their_time_while_there_is_room() -> None:
    with (
        listening(handshake_seconds=60.0, least_seconds=0.0) as (listener, hosts),
        closing(stranger(listener)) as silent,
    ):
        for number in range(3):
            assert connects(listener, hosts, number)
        silent.settimeout(0.2)
        with pytest.raises(TimeoutError):
            silent.recv(1)


def test_a_stranger_that_sends_a_byte_from_time_to_time_is_disconnected() -> None:
    clock = system().clock
    with listening(handshake_seconds=0.3) as (listener, hosts), closing(stranger(listener)) as dripping:
        dripping.settimeout(0.02)
        began, is_open = clock.monotonic(), True
        # The header of a TLS record of 16 KB, and then a byte of it from time to time
        dripping.sendall(b"\x16\x03\x01\x40\x00")
        while is_open:
            assert clock.monotonic() - began < PATIENCE
            try:
                dripping.sendall(b"x")
                is_open = dripping.recv(1024) != b""
            except TimeoutError:
                pass
            except OSError:
                is_open = False
        assert connects(listener, hosts, 1)


def test_a_process_without_a_thread_left_loses_the_connection_and_not_the_listener(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with listening() as (listener, hosts):
        start = threading.Thread.start

        def refuse(thread: threading.Thread, *rest: Any) -> None:
            if thread.name == "kcl-host-handshake":
                raise RuntimeError("can't start new thread")
            start(thread, *rest)

        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            with closing(stranger(listener)) as refused, suppress(ConnectionResetError):
                assert refused.recv(1) == b""
        assert connects(listener, hosts, 2)


@pytest.mark.parametrize(
    ("host", "address"), [("::1", "::1"), ("[::1]", "::1"), ("::", "127.0.0.1"), ("localhost", "127.0.0.1")]
)
def test_hosts_connect_by_ipv6_and_by_names(host: str, address: str) -> None:
    with listening(host) as (listener, hosts):
        assert connects(listener, hosts, 3, address)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
def test_an_address_at_which_it_cannot_listen_is_named(host: str) -> None:
    with pytest.raises(ConfigurationError, match=f"cannot listen for record processors at {host}"):
        HostListener(host, 0, CERTIFICATE, SECRET, Hosts())


def test_a_closed_listener_ends_its_thread() -> None:
    before = set(threading.enumerate())
    with listening():
        (accepting,) = set(threading.enumerate()) - before
    accepting.join(PATIENCE)
    assert not accepting.is_alive()
