"""One request and its response: the code that HTTP/1.1 and HTTP/2 have in common."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable
from typing import Protocol

from kcl_dagster.emulator.http.http_messages import Dropped, Handler, HttpRequest, Response

logger = logging.getLogger(__name__)

FAILURE = Response(500, b'{"__type":"InternalFailure","message":"The emulator failed, see its log."}')


class Exchange(Protocol):
    """The connection to the client, for one request and its response. All methods are called on the event loop. A
    complete response is sent with `send`. Otherwise, `start` is called first, then `push` for each piece, then
    `finish`. `drop` closes the connection without an answer."""

    request: HttpRequest

    def send(self, response: Response, body: bytes) -> None: ...
    def start(self, response: Response) -> None: ...
    async def push(self, piece: bytes) -> None: ...
    def finish(self) -> None: ...
    def drop(self) -> None: ...


def serve(handler: Handler, exchange: Exchange) -> asyncio.Task[None] | None:
    """Respond at once if the handler returns a complete response. Otherwise, return the task that responds
    later."""
    try:
        answer = handler(exchange.request)
    except Dropped:
        exchange.drop()
        return None
    except Exception:
        logger.exception("%s %s", exchange.request.method, exchange.request.target)
        answer = FAILURE
    if isinstance(answer, Response) and isinstance(answer.body, bytes):
        exchange.send(answer, answer.body)
        return None
    return asyncio.get_running_loop().create_task(_serve_later(answer, exchange))


async def _serve_later(answer: Response | Awaitable[Response], exchange: Exchange) -> None:
    try:
        response = answer if isinstance(answer, Response) else await answer
    except Dropped:
        exchange.drop()
        return
    except Exception:
        logger.exception("%s %s", exchange.request.method, exchange.request.target)
        response = FAILURE
    if isinstance(response.body, bytes):
        exchange.send(response, response.body)
    else:
        await _stream(response, response.body, exchange)


async def _stream(response: Response, pieces: AsyncIterator[bytes], exchange: Exchange) -> None:
    exchange.start(response)
    try:
        async for piece in pieces:
            await exchange.push(piece)
    except Dropped:
        exchange.drop()
    except Exception:
        # The status has been sent already, so only a closed connection can show the client that the response
        # failed.
        logger.exception("%s %s", exchange.request.method, exchange.request.target)
        exchange.drop()
    else:
        exchange.finish()
    finally:
        close = getattr(pieces, "aclose", None)
        if close is not None:
            await close()
