"""Resharding of a stream: closes shards, and opens their children. As on AWS, every step is a split or a merge."""

from __future__ import annotations

from kcl_dagster.emulator.kinesis.hashkey import KeyRange, uniform
from kcl_dagster.emulator.kinesis.shard_state import ShardState
from kcl_dagster.emulator.kinesis.stream_state import Stream


def split(stream: Stream, shard: ShardState, at_key: int, now: float) -> None:
    """Close `shard`, and open two children. The hash range of the upper child starts at `at_key`."""
    ranges = (KeyRange(shard.hash_range.start, at_key - 1), KeyRange(at_key, shard.hash_range.end))
    _replace(stream, [shard], ranges, now)


def merge(stream: Stream, lower: ShardState, upper: ShardState, now: float) -> None:
    """Close two adjacent shards, and open a child that covers both hash ranges."""
    _replace(stream, [lower, upper], (KeyRange(lower.hash_range.start, upper.hash_range.end),), now)


def scale_uniformly(stream: Stream, count: int, now: float) -> None:
    """Reshard to `count` shards with equal hash ranges: split at every new border, then merge across the old
    borders."""
    targets = uniform(count)
    for target in targets:
        shard = stream.shard_for(target.start)
        if shard.hash_range.start != target.start:
            split(stream, shard, target.start, now)
    for target in targets:
        while (lower := stream.shard_for(target.start)).hash_range.end < target.end:
            merge(stream, lower, stream.shard_for(lower.hash_range.end + 1), now)


def _replace(stream: Stream, parents: list[ShardState], ranges: tuple[KeyRange, ...], now: float) -> None:
    first = stream.next_index
    children = [
        ShardState(first + offset, hash_range, now, stream.limits, parents)
        for offset, hash_range in enumerate(ranges)
    ]
    for child in children:
        stream.add_shard(child)
    for parent in parents:
        parent.close(now, children)
    stream.shards_changed()
