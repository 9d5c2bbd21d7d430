"""Checks the address of a Spark master or a Spark Connect server.

If a master does not answer, Spark itself tries for more than a minute before it reports an error. So a worker first
opens a connection to the address.
"""

import socket
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

from kcl_dagster.errors import ConfigurationError

CONNECT_PORT: Final = 15002  # of a Spark Connect server whose address contains no port
SECONDS: Final = 10.0  # for one connection
_KINDS: Final = {"sc": "Spark Connect server", "spark": "Spark master"}
# If one of these variables is set, gRPC reaches a Spark Connect server through the proxy that the variable names.
_PROXIES: Final = ("grpc_proxy", "https_proxy", "http_proxy")


def refuse_unreachable(url: str, environment: Mapping[str, str], *, seconds: float = SECONDS) -> None:
    """Raise ConfigurationError if no server listens at `url`. If `url` has several masters, one of them has to
    listen.

    Blocks for at most `seconds` for each address. Does nothing for other masters, such as YARN and Kubernetes. Also
    does nothing for a Spark Connect server that gRPC reaches through a proxy.
    """
    scheme = url.partition("://")[0]
    if scheme not in _KINDS or (scheme == "sc" and any(environment.get(name) for name in _PROXIES)):
        return
    problems: list[str] = []
    for host, port in _addresses(url):
        try:
            socket.create_connection((host, port), seconds).close()
        except OSError as error:
            problems.append(f"{host}:{port} ({error})")
        else:
            return
    raise ConfigurationError(
        f"no {_KINDS[scheme]} answers at {', '.join(problems)}: check the url, the server and the network"
    )


def _addresses(url: str) -> Iterator[tuple[str, int]]:
    """The hosts and ports in a URL. A URL of several masters is `spark://one:7077,two:7077`."""
    scheme, _, rest = url.partition("://")
    for one in rest.split(","):
        try:
            parts = urlsplit(f"{scheme}://{one}")
            port = parts.port or (CONNECT_PORT if scheme == "sc" else None)
        except ValueError:  # not a number
            port = None
        if port is None or not parts.hostname:
            raise ConfigurationError(f"the Spark url {scheme}://... does not have the form {scheme}://host:port")
        yield parts.hostname, port
