"""Workers whose consumer's code, sink or platform fails."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from botocore.exceptions import EndpointConnectionError, ReadTimeoutError

from tests.unit.worker.kit import Data, Run, World

A, B, C = (f"shardId-{index:012d}" for index in range(3))


def fails_on(*poison: str) -> Callable[[Data], None]:
    def refuse(data: Data) -> None:
        for _, _, text in data:
            if text in poison:
                raise ValueError(f"cannot parse {text!r}")

    return refuse


def world_with(policy: dict[str, Any], shards: int = 1, limit: int = 100) -> tuple[World, Run]:
    world = World(shards=shards, batch={"failure": policy})
    run = world.worker("w1")
    run.engine.limit = limit
    return world, run


def work(world: World, run: Run, rounds: int = 200) -> None:
    """Let backoffs pass as well."""
    for _ in range(rounds):
        run.round()
        world.clock.advance(1)


def stored(world: World, shard: str = A) -> str:
    return "".join(text for s, _, text in sorted(world.store.everything()) if s == shard)


@contextmanager
def away_after(run: Run, written: str) -> Iterator[None]:
    """DynamoDB is away from the first update on whose request matches `written`. That update is applied, and its
    answer is lost."""
    is_away = False

    def call(method: str, request: Mapping[str, Any]) -> None:
        nonlocal is_away
        if is_away:
            raise EndpointConnectionError(endpoint_url="https://dynamodb")
        if method == "update_item" and re.search(written, str(request)):
            is_away = True
            run.client.service.update_item(**request)
            raise ReadTimeoutError(endpoint_url="https://dynamodb")

    run.client.before.append(call)
    yield
    assert is_away, f"no update matched {written}"
    run.client.before.remove(call)
