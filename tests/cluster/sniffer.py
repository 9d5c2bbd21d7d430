"""What passes between a machine and the others, as someone on the network sees it."""

import socket
import struct
import threading
from typing import Self

ALL_PROTOCOLS = 0x0003
IPV4, TCP = 0x0800, 6
ETHERNET = 14
KEPT_BYTES = 64 << 20


class Sniffer:
    """Keeps what TCP carries through an interface from or to `port`, and separately the rest."""

    def __init__(self, interface: str, port: int) -> None:
        self.port = port
        self.at_port, self.elsewhere = bytearray(), bytearray()
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
        self._socket.bind((interface, 0))
        self._socket.settimeout(0.5)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                frame = self._socket.recv(1 << 17)
            except OSError:
                continue
            found = payload(frame)
            if found is not None:
                ports, content = found
                kept = self.at_port if self.port in ports else self.elsewhere
                if len(kept) < KEPT_BYTES:
                    kept += content


def payload(frame: bytes) -> tuple[tuple[int, int], bytes] | None:
    """Ports and content of a frame that carries TCP over IPv4; None of any other."""
    if len(frame) < ETHERNET + 40 or struct.unpack_from("!H", frame, 12)[0] != IPV4 or frame[ETHERNET + 9] != TCP:
        return None
    header = (frame[ETHERNET] & 15) * 4
    (length,) = struct.unpack_from("!H", frame, ETHERNET + 2)
    start = ETHERNET + header
    source, target = struct.unpack_from("!HH", frame, start)
    offset = (frame[start + 12] >> 4) * 4
    return (source, target), frame[start + offset : ETHERNET + length]
