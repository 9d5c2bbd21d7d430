"""Where a process listens."""

import socket

import pytest

from kcl_dagster.server_socket import open_server_socket

PATIENCE = 20.0


@pytest.mark.parametrize(
    ("host", "addresses"),
    [
        ("127.0.0.1", {"127.0.0.1"}),
        ("0.0.0.0", {"127.0.0.1"}),
        ("localhost", {"127.0.0.1"}),
        ("::1", {"::1"}),
        ("[::1]", {"::1"}),
        ("::", {"127.0.0.1", "::1"}),
        ("[::]", {"127.0.0.1", "::1"}),
        ("", {"127.0.0.1"}),
    ],
)
def test_a_server_is_found_at_the_addresses_of_its_host(host: str, addresses: set[str]) -> None:
    found = set()
    with open_server_socket(host, 0) as server:
        for address in ("127.0.0.1", "::1"):
            try:
                socket.create_connection((address, server.getsockname()[1]), PATIENCE).close()
            except OSError:
                continue
            found.add(address)
    assert found == addresses


@pytest.mark.parametrize("host", ["no-such-host.invalid", "::zz"])
def test_a_host_that_does_not_exist_is_an_os_error(host: str) -> None:
    with pytest.raises(OSError, match=r".+"):
        open_server_socket(host, 0)
