"""Shards as cases describe them, and the two shard histories that cases refer to by name."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from botocore.exceptions import ClientError

from kcl_dagster.model.shard import MAX_HASH_KEY, HashRange, Shard
from tests.conformance.case import Given, NotUnderstood

# id: parents, first and last sequence number, hash range
_Row = tuple[tuple[int, ...], int, int | None, int, int]
_A: Final[dict[int, _Row]] = {
    0: ((), 11, 102, 0, 99),
    1: ((), 11, 102, 100, 199),
    2: ((), 11, 102, 200, 299),
    3: ((), 11, 102, 300, 399),
    4: ((), 11, None, 400, 499),
    5: ((), 11, 205, 500, MAX_HASH_KEY),
    6: ((0, 1), 103, 205, 0, 199),
    7: ((2, 3), 103, 205, 200, 399),
    8: ((6, 7), 206, None, 0, 399),
    9: ((5,), 206, None, 500, 799),
    10: ((5,), 206, None, 800, MAX_HASH_KEY),
}
_B: Final[dict[int, _Row]] = {
    0: ((), 1000, 1049, 0, MAX_HASH_KEY),
    1: ((), 1000, 1049, 0, MAX_HASH_KEY),
    2: ((0, 1), 1050, 1099, 0, MAX_HASH_KEY),
    3: ((2,), 1100, 1149, 0, MAX_HASH_KEY),
    4: ((2,), 1100, 1149, 0, MAX_HASH_KEY),
    5: ((3, 4), 1150, 1199, 0, MAX_HASH_KEY),
    6: ((5,), 1200, 1249, 0, MAX_HASH_KEY),
    7: ((5,), 1200, 1249, 0, MAX_HASH_KEY),
    8: ((6, 7), 1250, 1299, 0, MAX_HASH_KEY),
    9: ((8,), 1300, None, 0, MAX_HASH_KEY),
    10: ((8,), 1300, None, 0, MAX_HASH_KEY),
}
GRAPHS: Final = {"A": _A, "B": _B}


def graph(text: str) -> list[Shard]:
    """`A`, `graph B`, `A with shardId-3 made open (...)`, `A without shardId-6, shardId-8`."""
    match = re.match(r"(?:graph )?([AB])\b(.*)", text, re.DOTALL)
    if match is None:
        raise NotUnderstood(f"graph {text!r}")
    shards = {f"shardId-{number}": _shard(number, row) for number, row in GRAPHS[match[1]].items()}
    change = re.sub(r"\(.*?\)", "", match[2]).strip(" .")
    if not change:
        return list(shards.values())
    names = re.findall(r"shardId-\d+", change)
    if re.fullmatch(r"with .*? made open|where .*? (?:is|are) open", change) and names:
        return [replace(shard, ending_sequence=None) if name in names else shard for name, shard in shards.items()]
    if re.fullmatch(r"with .*? made closed|where .*? (?:is|are) closed", change) and names:
        return [
            replace(shard, ending_sequence="9999") if name in names else shard for name, shard in shards.items()
        ]
    if change.startswith(("without", "minus")) and names:
        return [shard for name, shard in shards.items() if name not in names]
    raise NotUnderstood(f"graph {text!r}")


def _shard(number: int, row: _Row) -> Shard:
    parents, first, last, low, high = row
    return Shard(
        id=f"shardId-{number}",
        hash_range=HashRange(low, high),
        starting_sequence=str(first),
        ending_sequence=None if last is None else str(last),
        parents=tuple(f"shardId-{parent}" for parent in parents),
    )


def shards_of(given: Given, *names: str) -> list[Shard]:
    """Listed shards: a graph by name, objects, or short texts."""
    if "graph" in given:
        return graph(given.text("graph"))
    open_all = given.flag("all_open", default=False)
    found = []
    for number, value in enumerate(given.sequence(*(names or ("shards",)))):
        if isinstance(value, str):
            found.append(_from_text(value, number, is_open=open_all))
        elif isinstance(value, dict):
            found.append(_from_object(Given(value, f"given.shards[{number}]"), number, is_open=open_all))
        else:
            raise NotUnderstood(f"shard {value!r}")
    return found


def _from_text(text: str, number: int, *, is_open: bool) -> Shard:
    """`shardId-3 (leased)`, `shardId-2 (parent shardId-1)`, `child of both`: of all shards named before it."""
    match = re.fullmatch(r"(\S+)(?:\s+\((.*)\))?", text)
    if match is None:
        raise NotUnderstood(f"shard {text!r}")
    about = match[2] or ""
    parents = tuple(re.findall(r"[\w-]+", about.split("parent", 1)[1].lstrip("s"))) if "parent" in about else ()
    closed = not is_open and "open" not in about
    return Shard(
        id=match[1],
        hash_range=HashRange(0, MAX_HASH_KEY),
        starting_sequence=str(100 * number),
        ending_sequence=str(100 * number + 99) if closed else None,
        parents=tuple(parent for parent in parents if parent not in {"and", "of"}),
    )


def _from_object(given: Given, number: int, *, is_open: bool) -> Shard:
    hashes = [str(value) for value in given.sequence("hash", "hash_range", default=["0", str(MAX_HASH_KEY)])]
    end = given.text_or_none("end", "ending_sequence")
    return Shard(
        id=given.text("id", "shard", "shardId"),
        hash_range=HashRange(int(hashes[0]), int(hashes[1])),
        starting_sequence=given.text("start", "starting_sequence", default=str(100 * number)),
        ending_sequence=None if is_open else end,
        parents=tuple(given.texts("parents", default=[])),
    )


class ListedStream:
    """A stream behind boto3's names of which nothing matters but its shards.

    Each listing gives the next of `listings`, the last one again and again. Filters are applied as far as the
    shards themselves tell: what was open at the horizon has no listed parent.
    """

    def __init__(self, *listings: list[Shard], filtered: bool = False, error: str | None = None) -> None:
        self.listings = listings
        self.filtered = filtered
        """Whether listings are what the service answers to a filter already."""

        self.error = error
        self.filters: list[Mapping[str, Any] | None] = []

    def list_shards(self, **request: Any) -> dict[str, Any]:
        wanted = request.get("ShardFilter")
        self.filters.append(wanted)
        if self.error is not None:
            raise ClientError({"Error": {"Code": self.error, "Message": "as the case says"}}, "ListShards")
        shards = self.listings[min(len(self.filters), len(self.listings)) - 1]
        return {"Shards": [_description(shard) for shard in self._matching(shards, wanted)]}

    def _matching(self, shards: list[Shard], wanted: Mapping[str, Any] | None) -> list[Shard]:
        if wanted is None or self.filtered:
            return shards
        if wanted["Type"] == "AT_LATEST":
            return [shard for shard in shards if shard.is_open]
        names = {shard.id for shard in shards}
        return [shard for shard in shards if names.isdisjoint(shard.parents)]

    def describe_stream_summary(self, StreamName: str) -> dict[str, Any]:  # noqa: N803 - boto3's name
        if self.error is not None:
            raise ClientError(
                {"Error": {"Code": self.error, "Message": "as the case says"}}, "DescribeStreamSummary"
            )
        summary = {
            "StreamName": StreamName,
            "StreamARN": f"arn:aws:kinesis:us-east-1:123456789012:stream/{StreamName}",
            "StreamCreationTimestamp": 1.0,
            "RetentionPeriodHours": 24,
            "StreamStatus": "ACTIVE",
            "OpenShardCount": sum(shard.is_open for shard in self.listings[-1]) if self.listings else 0,
        }
        return {"StreamDescriptionSummary": summary}


def _description(shard: Shard) -> dict[str, Any]:
    sequences = {"StartingSequenceNumber": shard.starting_sequence}
    if shard.ending_sequence is not None:
        sequences["EndingSequenceNumber"] = shard.ending_sequence
    described: dict[str, Any] = {
        "ShardId": shard.id,
        "HashKeyRange": {
            "StartingHashKey": str(shard.hash_range.start),
            "EndingHashKey": str(shard.hash_range.end),
        },
        "SequenceNumberRange": sequences,
    }
    return described | dict(zip(("ParentShardId", "AdjacentParentShardId"), shard.parents, strict=False))
