"""What a worker and a host send each other is encrypted, and nothing is unpickled of a peer that is not known."""

import pickle
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from kcl_dagster.spark.processor_hosts import line as module
from kcl_dagster.spark.processor_hosts.certificate import Certificate
from kcl_dagster.spark.processor_hosts.host_listener import HostListener
from kcl_dagster.spark.processor_hosts.line import Line, PeerRefused

SECRET = b"the secret of a session"
PAYLOAD = b"what a record holds"
OURS, ANOTHER = Certificate.new(), Certificate.new()
PATIENCE = 20.0


@contextmanager
def connected(
    certificate: str = OURS.certificate, secret: bytes = SECRET, address: tuple[str, int] | None = None
) -> Iterator[tuple[Line, Line]]:
    """The worker's end and the host's. `address`: where the host connects to."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        host = pool.submit(Line.connect, address or server.getsockname(), certificate, secret)
        server.settimeout(PATIENCE)
        try:
            worker = Line.accept(server.accept()[0], OURS.context(), SECRET)
        except (EOFError, OSError):
            host.result()  # its reason is the better one
            raise
        with worker, host.result() as other:
            yield worker, other


def send(line: Line, messages: list[Any]) -> None:
    for message in messages:
        line.send(message)


def receive(line: Line, number: int) -> list[Any]:
    return [line.recv() for _ in range(number)]


class Tap:
    """Stands between host and worker, and keeps what passes."""

    def __init__(self, to: tuple[str, int]) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._to = to
        self.seen = bytearray()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> bytes:
        """What has passed, when both ends are closed."""
        self._thread.join(PATIENCE)
        return bytes(self.seen)

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._server.getsockname()
        return host, port

    def _run(self) -> None:
        with self._server, self._server.accept()[0] as host, socket.create_connection(self._to) as worker:
            back = threading.Thread(target=self._forward, args=(worker, host), daemon=True)
            back.start()
            self._forward(host, worker)
            back.join()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while content := source.recv(1 << 16):
                self.seen += content
                target.sendall(content)
            target.shutdown(socket.SHUT_WR)


def test_objects_of_all_sizes_arrive_as_they_were_sent() -> None:
    messages: list[Any] = [None, {"a": 1}, b"x" * (5 << 20), "", list(range(10_000))]
    with connected() as (worker, host), ThreadPoolExecutor(1) as pool:
        for sender, receiver in ((worker, host), (host, worker)):
            received = pool.submit(receive, receiver, len(messages))
            for message in messages:
                sender.send(message)
            assert received.result(PATIENCE) == messages


def test_both_ends_may_send_while_they_receive() -> None:
    many = [b"x" * 100_000] * 50
    with connected() as (worker, host), ThreadPoolExecutor(4) as pool:
        received = [pool.submit(receive, end, len(many)) for end in (worker, host)]
        for end in (worker, host):
            pool.submit(send, end, many)
        assert [one.result(PATIENCE) for one in received] == [many, many]


def test_nothing_that_is_sent_can_be_read_on_the_way() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        tap = Tap(server.getsockname())
        accepted = pool.submit(lambda: Line.accept(server.accept()[0], OURS.context(), SECRET))
        with Line.connect(tap.address, OURS.certificate, SECRET) as host, accepted.result(PATIENCE) as worker:
            for sender, receiver in ((worker, host), (host, worker)):
                sender.send(PAYLOAD)
                assert receiver.recv() == PAYLOAD
    seen = tap.end()
    assert len(seen) > 500
    assert PAYLOAD not in seen
    assert SECRET not in seen


def test_a_host_sends_no_secret_to_another_than_its_worker() -> None:
    """A server with another certificate does not receive anything but the handshake."""
    with pytest.raises(ssl.SSLCertVerificationError), connected(ANOTHER.certificate):
        pass


def test_a_host_with_another_secret_is_refused() -> None:
    with pytest.raises((EOFError, OSError)), connected(secret=SECRET[::-1]):
        pass


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, None], ids=["TLS 1.2", "no TLS"])
def test_older_and_no_encryption_are_refused(version: ssl.TLSVersion | None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(lambda: Line.accept(server.accept()[0], OURS.context(), SECRET))
        with closing(socket.create_connection(server.getsockname())) as connection, suppress(OSError):
            if version is None:
                connection.sendall(SECRET)
            else:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                context.maximum_version = version
                context.wrap_socket(connection).sendall(SECRET)
        with pytest.raises(ssl.SSLError):
            accepted.result(PATIENCE)


class Touch:
    """Makes a file where it is unpickled."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._file,)


@pytest.mark.parametrize("secret", [SECRET, SECRET[::-1]], ids=["known", "unknown"])
def test_only_objects_of_a_host_with_the_secret_are_unpickled(tmp_path: Path, secret: bytes) -> None:
    file = tmp_path / "unpickled"
    listener = HostListener("127.0.0.1", 0, OURS, SECRET, lambda _: None)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=OURS.certificate)
    content = pickle.dumps(Touch(file))
    with (
        socket.create_connection(("127.0.0.1", listener.port), PATIENCE) as connection,
        context.wrap_socket(connection) as line,
        suppress(OSError),
    ):
        line.sendall(secret + module.LENGTH.pack(len(content)) + content)
        while line.recv(1024):
            pass  # until the worker closes: what came is no greeting
    listener.close()
    assert file.exists() == (secret == SECRET)


def test_a_client_that_sends_nothing_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HANDSHAKE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(lambda: Line.accept(server.accept()[0], OURS.context(), SECRET))
        with closing(socket.create_connection(server.getsockname(), PATIENCE)) as connection:
            assert connection.recv(1024) == b""
        with pytest.raises((EOFError, OSError)):
            accepted.result(PATIENCE)


def test_the_end_of_a_connection_is_seen_without_waiting() -> None:
    with connected() as (worker, host):
        assert not worker.poll(0)
        host.send("message")
        assert worker.poll(PATIENCE)
        assert worker.recv() == "message"
        assert not worker.poll(0)
        host.close()
        assert worker.poll(PATIENCE)
        with pytest.raises((EOFError, OSError)):
            worker.recv()


def test_closing_ends_a_thread_that_receives() -> None:
    with connected() as (worker, _), ThreadPoolExecutor(1) as pool:
        received = pool.submit(worker.recv)
        assert not worker.poll(0.1)
        worker.close()
        with pytest.raises((EOFError, OSError)):
            received.result(PATIENCE)


def test_a_refused_secret_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        host = pool.submit(Line.connect, server.getsockname(), OURS.certificate, SECRET[::-1])
        with pytest.raises(PeerRefused, match="does not have the secret"):
            Line.accept(server.accept()[0], OURS.context(), SECRET)
        with pytest.raises((EOFError, OSError)):
            host.result(PATIENCE)
