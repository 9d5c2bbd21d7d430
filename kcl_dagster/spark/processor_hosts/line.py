"""An encrypted connection over which a worker and a host exchange Python objects.

The host verifies the certificate of the worker, which came with its task, and then sends the secret of the session.
The worker unpickles nothing of a peer that has not sent the secret.
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

HANDSHAKE_SECONDS: Final = 10.0  # a peer that has not proved itself by then is disconnected
ACCEPTED: Final = b"\x01"  # the worker's response to the secret
LENGTH: Final = struct.Struct(">Q")  # comes before each object
CHUNK: Final = 1 << 18

# A connection whose other machine has vanished ends after half a minute; one whose process died, at once.
KEEPALIVE: Final = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
UNACKNOWLEDGED: Final = ("TCP_USER_TIMEOUT", 30_000)  # milliseconds; the same for data that is under way


class PeerRefused(OSError):
    """The peer has not proved what it has to."""


class Line:
    """One end. Objects may be sent on any thread, also while another thread receives.

    TLS works in memory here: an object of `ssl` must not be used by two threads at once, and one thread waits in
    `recv` while another sends.
    """

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, *, is_worker: bool) -> None:
        """Runs the handshake of TLS. Raises OSError, also for a certificate that is not trusted, or EOFError."""
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
        """The host's end. Raises OSError or EOFError if the worker is not the one of the certificate (PEM), or does
        not accept the secret."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # this one certificate is trusted, at whichever address
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
        """The worker's end. Raises OSError or EOFError if the peer has not sent the secret in HANDSHAKE_SECONDS."""
        connection.settimeout(HANDSHAKE_SECONDS)
        # A peer that sends a byte now and then would never meet that limit.
        closing = threading.Timer(HANDSHAKE_SECONDS, _shut, (connection,))
        closing.daemon = True
        closing.start()
        try:
            line = cls(connection, context, is_worker=True)
            if not hmac.compare_digest(line._read(len(secret)), secret):
                raise PeerRefused("a client that does not have the secret of this session")
            line._write(ACCEPTED)
        except BaseException:
            connection.close()
            raise
        finally:
            closing.cancel()
        connection.settimeout(None)
        return line

    def send(self, message: Any) -> None:
        """Blocks until the operating system has taken all of it. Raises OSError."""
        content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        self._write(LENGTH.pack(len(content)) + content)

    def recv(self) -> Any:
        """Blocks until an object has come. Raises EOFError or OSError when the connection ends."""
        with self._receiving:
            (length,) = LENGTH.unpack(self._read(LENGTH.size))
            return pickle.loads(self._read(length))  # noqa: S301 - the peer has sent the secret

    def poll(self, seconds: float) -> bool:
        """Whether something comes in this time: a part of an object, or the end of the connection. False at once
        while another thread receives."""
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
        """Ends a `recv` of another thread, too."""
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
                    self._socket.sendall(self._outgoing.read())  # the reason, for the log of the peer
                raise
            else:
                self._socket.sendall(self._outgoing.read())
                return

    def _write(self, content: bytes) -> None:
        left = memoryview(content)
        with self._sending:  # what is encrypted first is sent first
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
        """Decrypt what has come. Returns whether it was at least a byte."""
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
    """Notice a peer whose machine is gone. Send small messages at once."""
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
