"""Opens the sockets at which processes of a worker listen."""

import socket
from typing import Final

BACKLOG: Final = 64  # clients that connect at the same time


def bare_host(host: str) -> str:
    """An IPv6 address without the brackets that it has in URLs and in Spark's settings; anything else as it is."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def open_server_socket(host: str, port: int) -> socket.socket:
    """Listen at an address or name. IPv6 is used for an IPv6 address, and for a name that has no IPv4 address. With
    `::`, the socket listens at all IPv6 addresses, and also at all IPv4 addresses if the system supports this.
    Raises OSError."""
    host = bare_host(host)
    family = _family(host)
    is_dual = host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=is_dual)


def _family(host: str) -> socket.AddressFamily:
    if ":" in host:
        return socket.AF_INET6
    if not host:
        return socket.AF_INET
    found = {family for family, *_ in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    return socket.AF_INET6 if found == {socket.AF_INET6} else socket.AF_INET
