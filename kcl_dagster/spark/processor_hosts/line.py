"""An encrypted connection over which a worker and a host exchange Python objects.

The host has received the worker's certificate with its task. It verifies the certificate, and then sends the secret
of the session. The worker unpickles nothing from a peer that has not sent the secret.
"""

import hmac
import pickle
import socket
import ssl
import struct
import threading
import time
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any, Final, Self

HANDSHAKE_SECONDS: Final = 10.0  # a peer that has not proved its identity by then is disconnected
ACCEPTED: Final = b"\x01"  # the worker's response to the secret
LENGTH: Final = struct.Struct(">Q")  # sent before each object
CHUNK: Final = 1 << 18

# If the other machine has vanished, a connection ends after half a minute; if the process has died, at once.
KEEPALIVE: Final = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
UNACKNOWLEDGED: Final = ("TCP_USER_TIMEOUT", 30_000)  # milliseconds, for sent data that is not acknowledged


class PeerRefused(OSError):
    """The peer has not proved its identity."""


class Line:
    """One end of a connection. Objects can be sent on any thread, even while another thread receives.

    Two threads must not use an object of `ssl` at once, but one thread waits in `recv` while another one sends. So
    TLS works on buffers in memory here, and only the work on these buffers is locked.
    """

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, *, is_worker: bool) -> None:
        """Carry out the TLS handshake. Raises OSError or EOFError if the handshake fails, for example if the
        certificate is not trusted."""
        self._socket = connection
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=is_worker)
        self._in_tls, self._sending, self._receiving = threading.Lock(), threading.Lock(), threading.Lock()
        self._received = bytearray()
        self._is_over = False
        _keep_alive(connection)
        self._handshake()

    @classmethod
    def connect(cls, address: tuple[str, int], certificate: str, secret: bytes) -> Self:
        """Connect as a host. Raises OSError or EOFError if the worker does not have this certificate (PEM), or
        does not accept the secret."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # only this certificate is trusted, at any address
        context.load_verify_locations(cadata=certificate)
        connection = socket.create_connection(address, HANDSHAKE_SECONDS)
        try:
            line = cls(connection, context, is_worker=False)
            line._write(secret)
            if line._read(len(ACCEPTED)) != ACCEPTED:
                raise PeerRefused("the worker has refused the secret of this session")
        except BaseException:
            connection.close()
            raise
        connection.settimeout(None)
        return line

    @classmethod
    def accept(cls, connection: socket.socket, context: ssl.SSLContext, secret: bytes) -> Self:
        """Accept the connection of a host, on the worker's side. Raises OSError or EOFError if the peer does not
        send the secret.

        A peer is refused if it sends nothing for HANDSHAKE_SECONDS. But a peer that sends single bytes can take
        longer in total. The caller has to limit the total time, and to shut the connection down after this time.
        """
        connection.settimeout(HANDSHAKE_SECONDS)
        try:
            line = cls(connection, context, is_worker=True)
            if not hmac.compare_digest(line._read(len(secret)), secret):
                raise PeerRefused("a client that does not have the secret of this session")
            line._write(ACCEPTED)
        except BaseException:
            connection.close()
            raise
        connection.settimeout(None)
        return line

    def send(self, message: Any) -> None:
        """Send an object. Blocks until the operating system has accepted all of it. Raises OSError."""
        content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        self._write(LENGTH.pack(len(content)) + content)

    def recv(self) -> Any:
        """Receive an object. Blocks until it has arrived. Raises EOFError or OSError if the connection ends."""
        with self._receiving:
            (length,) = LENGTH.unpack(self._read(LENGTH.size))
            return pickle.loads(self._read(length))  # noqa: S301 - the peer has sent the secret

    def poll(self, seconds: float) -> bool:
        """Wait for at most `seconds` until something arrives: a part of an object, or the end of the connection.
        Returns whether something has arrived. If another thread is receiving, returns False at once."""
        if not self._receiving.acquire(blocking=False):
            return False
        try:
            until = time.monotonic() + seconds
            while not (self._received or self._is_over or self._decrypt()):
                if not wait([self._socket], max(0.0, until - time.monotonic())):
                    return False
                self._take()
            return True
        finally:
            self._receiving.release()

    def close(self) -> None:
        """Close the connection. A `recv` of another thread ends, too."""
        _shut(self._socket)
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _handshake(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._socket.sendall(self._outgoing.read())
                self._take()
                if self._is_over:
                    raise EOFError from None
            except ssl.SSLError:
                with suppress(OSError):
                    self._socket.sendall(self._outgoing.read())  # TLS tells the peer the reason
                raise
            else:
                self._socket.sendall(self._outgoing.read())
                return

    def _write(self, content: bytes) -> None:
        left = memoryview(content)
        with self._sending:  # the data must be sent in the order of encryption
            while left:
                with self._in_tls:
                    left = left[self._tls.write(left[:CHUNK]) :]
                    encrypted = self._outgoing.read()
                self._socket.sendall(encrypted)

    def _read(self, length: int) -> bytes:
        while len(self._received) < length:
            if not self._decrypt():
                if self._is_over:
                    raise EOFError
                self._take()
        content = bytes(self._received[:length])
        del self._received[:length]
        return content

    def _decrypt(self) -> bool:
        """Decrypt the data that has arrived. Returns whether the result has at least one byte."""
        with self._in_tls:
            try:
                content = self._tls.read(CHUNK)
            except ssl.SSLWantReadError:
                return False
            except ssl.SSLZeroReturnError:
                content = b""
        self._received += content
        self._is_over = self._is_over or not content
        return bool(content)

    def _take(self) -> None:
        content = self._socket.recv(CHUNK)
        if content:
            with self._in_tls:
                self._incoming.write(content)
        else:
            self._is_over = True


def _keep_alive(connection: socket.socket) -> None:
    """Make the system detect a peer whose machine has vanished, and send small messages at once."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if connection.family == getattr(socket, "AF_UNIX", None):
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option, value in (*KEEPALIVE, UNACKNOWLEDGED):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
