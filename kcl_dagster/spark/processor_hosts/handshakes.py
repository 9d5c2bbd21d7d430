"""Limits the connections whose peers have not proved their identity yet."""

import threading
from collections.abc import Callable
from contextlib import suppress
from socket import SHUT_RDWR, socket
from typing import Final

MOST_OPEN: Final = 64  # handshakes; each has a thread
# A handshake takes milliseconds. If `MOST_OPEN` handshakes are open and another peer waits, the oldest handshake is
# ended as soon as it has been open for this time.
LEAST_SECONDS: Final = 1.0


class Handshakes:
    """Limits how many handshakes are open at the same time, and how long each takes. Any thread can use it.

    Each handshake has a thread of its own, and is open until this thread calls `end`. To end a handshake early, the
    peer is disconnected, which ends the thread.
    """

    def __init__(self, clock: Callable[[], float], seconds: float, most: int, least_seconds: float) -> None:
        """`clock`: monotonic. `seconds`: the time limit of a handshake. `most`: the limit of open handshakes.
        `least_seconds`: the time that each handshake has even while others wait."""
        self._clock = clock
        self._seconds = seconds
        self._most = most
        self._least_seconds = least_seconds
        self._begun: dict[socket, float] = {}  # oldest first
        self._cut: set[socket] = set()
        self._changed = threading.Condition()

    def wait_for_room(self) -> None:
        """Block until fewer than `most` handshakes are open. To make room, disconnect the peer of the oldest
        handshake when this handshake has been open for `least_seconds`."""
        with self._changed:
            while len(self._begun) >= self._most:
                oldest = next((since for one, since in self._begun.items() if one not in self._cut), None)
                if oldest is None:  # all of them are about to end
                    self._changed.wait()
                    continue
                left = oldest + self._least_seconds - self._clock()
                if left > 0:
                    self._changed.wait(left)
                else:
                    self._disconnect_begun_by(oldest)

    def disconnect_overdue(self) -> float | None:
        """Disconnect the peers whose time is over. Returns the seconds until the time of the next peer is over;
        None if no handshake is open."""
        with self._changed:
            now = self._clock()
            self._disconnect_begun_by(now - self._seconds)
            left = [since + self._seconds - now for one, since in self._begun.items() if one not in self._cut]
            return min(left, default=None)

    def begin(self, connection: socket) -> None:
        with self._changed:
            self._begun[connection] = self._clock()

    def end(self, connection: socket) -> None:
        with self._changed:
            self._begun.pop(connection, None)
            self._cut.discard(connection)
            self._changed.notify_all()

    def _disconnect_begun_by(self, moment: float) -> None:
        for connection, since in self._begun.items():
            if since <= moment and connection not in self._cut:
                self._cut.add(connection)
                with suppress(OSError):
                    connection.shutdown(SHUT_RDWR)
