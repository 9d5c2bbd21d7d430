"""The whole pipeline: real Dagster, real Spark, a reshard, a crash, a verdict."""

import re
from pathlib import Path

import pytest

from tests.acceptance.family import NOTHING_LEFT_SECONDS, demo, free_port, wait_for

VERDICT = re.compile(r"^produced (\d+), stored (\d+), duplicates 0, lost 0, out of order 0$", re.MULTILINE)
TAKEN = re.compile(r"(worker-00\d):\w{8} took (shardId-\d{12})")


def taken_after_the_kill(told: str) -> set[str]:
    """The shards that the killed worker was the last to take, and that somebody took again. Not all lines say from
    whom: a lease may be free for a moment."""
    before, slot, after = re.split(r"killed (worker-00\d) \(pid \d+\)", told, maxsplit=1)
    owners = {shard: owner for owner, shard in TAKEN.findall(before)}
    return {shard for _, shard in TAKEN.findall(after) if owners.get(shard) == slot}


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(1200)
def test_every_record_is_stored_once_and_in_order_through_a_reshard_and_a_crash(tmp_path: Path) -> None:
    arguments = ("--for", "60s", "--port", str(free_port()), "--directory", str(tmp_path / "demo"))
    with demo(tmp_path, *arguments) as running:
        code = running.process.wait(1100)
        told = running.output
        assert code == 0, told
        verdict = VERDICT.search(told)
        assert verdict is not None, told
        assert verdict[1] == verdict[2] != "0"
        assert told.rstrip().endswith(verdict[0]), "the verdict is the last line"
        assert re.search(r"^minutes \d+: clicks and sessions materialized once each", told, re.MULTILINE), told
        assert re.search(r"split shardId-\d{12} in two", told)
        assert re.search(r"killed worker-00\d \(pid \d+\)", told)
        assert taken_after_the_kill(told), told
        assert "Traceback" not in told
        wait_for(lambda: not running.family(), "the last process ends", NOTHING_LEFT_SECONDS)
