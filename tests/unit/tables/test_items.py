"""Leases and worker rows as every KCL writes them, and what is refused."""

from dataclasses import replace
from typing import Any

import pytest

from kcl_dagster.errors import UnreadableItem
from kcl_dagster.model.checkpoint import SHARD_END, TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.shard import MAX_HASH_KEY, HashRange
from kcl_dagster.model.stored import nothing_since, packed
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.model.worker_row import WorkerRow, WorkerState
from kcl_dagster.tables.items import (
    lease_from_changed_item,
    lease_from_item,
    lease_to_item,
    worker_row_from_item,
    worker_row_to_item,
)
from tests.unit.tables.kit import LATER, SEQUENCE, at

S0, S1, S2, S3, S7 = (f"shardId-00000000000{n}" for n in (0, 1, 2, 3, 7))
MULTI_KEY = f"123456789012:orders:1680616058:{S0}"
ORDERS = StreamIdentifier("orders", "123456789012", 1680616058)

# Items as the clients named write them, with what they mean.
WRITTEN: dict[str, tuple[dict[str, Any], Lease]] = {
    "KCL 3.5, owned": (
        {
            "leaseKey": {"S": S7},
            "entityType": {"S": "LEASE"},
            "leaseOwner": {"S": "host-a:1f0c"},
            "leaseCounter": {"N": "8123"},
            "ownerSwitchesSinceCheckpoint": {"N": "0"},
            "checkpoint": {"S": SEQUENCE},
            "checkpointSubSequenceNumber": {"N": "3"},
            "parentShardId": {"SS": [S3, S2]},
            "startingHashKey": {"S": "0"},
            "endingHashKey": {"S": "170141183460469231731687303715884105727"},
            "throughputKBps": {"N": "85.333333"},
        },
        Lease(
            key=LeaseKey(S7),
            shard_id=S7,
            counter=8123,
            owner=WorkerId("host-a:1f0c"),
            checkpoint=at(sub=3),
            parents=frozenset({S2, S3}),
            hash_range=HashRange(0, 2**127 - 1),
            throughput_kbps=85.333333,
        ),
    ),
    "KCL 3.0, in a handoff": (
        {
            "leaseKey": {"S": S7},
            "leaseOwner": {"S": "b"},
            "checkpointOwner": {"S": "a"},
            "leaseCounter": {"N": "5"},
            "ownerSwitchesSinceCheckpoint": {"N": "2"},
            "checkpoint": {"S": "LATEST"},
            "checkpointSubSequenceNumber": {"N": "0"},
        },
        Lease(
            key=LeaseKey(S7),
            shard_id=S7,
            counter=5,
            owner=WorkerId("b"),
            checkpoint_owner=WorkerId("a"),
            checkpoint=Checkpoint("LATEST"),
            owner_switches=2,
        ),
    ),
    "KCL 2.x, finished, without hash keys": (
        {
            "leaseKey": {"S": S0},
            "leaseCounter": {"N": "77"},
            "leaseOwner": {"S": "w"},
            "ownerSwitchesSinceCheckpoint": {"N": "0"},
            "checkpoint": {"S": "SHARD_END"},
            "checkpointSubSequenceNumber": {"N": "0"},
            "childShardIds": {"SS": [S1, S2]},
        },
        Lease(
            key=LeaseKey(S0),
            shard_id=S0,
            counter=77,
            owner=WorkerId("w"),
            checkpoint=SHARD_END,
            children=frozenset({S1, S2}),
        ),
    ),
    "KCL 2.x, checkpoint pending": (
        {
            "leaseKey": {"S": S0},
            "leaseCounter": {"N": "1"},
            "ownerSwitchesSinceCheckpoint": {"N": "0"},
            "checkpoint": {"S": "TRIM_HORIZON"},
            "checkpointSubSequenceNumber": {"N": "0"},
            "pendingCheckpoint": {"S": SEQUENCE},
            "pendingCheckpointSubSequenceNumber": {"N": "2"},
            "pendingCheckpointState": {"B": b"state"},
        },
        Lease(
            key=LeaseKey(S0),
            shard_id=S0,
            counter=1,
            checkpoint=TRIM_HORIZON,
            pending_checkpoint=at(sub=2),
            pending_state=b"state",
        ),
    ),
    "KCL 1.x, without sub-sequence numbers": (
        {
            "leaseKey": {"S": S0},
            "leaseCounter": {"N": "1"},
            "ownerSwitchesSinceCheckpoint": {"N": "0"},
            "checkpoint": {"S": SEQUENCE},
        },
        Lease(key=LeaseKey(S0), shard_id=S0, counter=1, checkpoint=at()),
    ),
    "without a checkpoint at all": (
        {"leaseKey": {"S": S0}, "leaseCounter": {"N": "1"}, "ownerSwitchesSinceCheckpoint": {"N": "0"}},
        Lease(key=LeaseKey(S0), shard_id=S0, counter=1),
    ),
    "KCL 3.5, multi-stream": (
        {
            "leaseKey": {"S": MULTI_KEY},
            "streamName": {"S": "123456789012:orders:1680616058"},
            "shardId": {"S": S0},
            "entityType": {"S": "LEASE"},
            "leaseCounter": {"N": "0"},
            "ownerSwitchesSinceCheckpoint": {"N": "0"},
            "checkpoint": {"S": "TRIM_HORIZON"},
            "checkpointSubSequenceNumber": {"N": "0"},
            "startingHashKey": {"S": "0"},
            "endingHashKey": {"S": "340282366920938463463374607431768211455"},
        },
        Lease(
            key=LeaseKey(MULTI_KEY),
            shard_id=S0,
            checkpoint=TRIM_HORIZON,
            hash_range=HashRange(0, MAX_HASH_KEY),
            stream=ORDERS,
        ),
    ),
    "ours, in its seventh batch": (
        {
            "leaseKey": {"S": S0},
            "entityType": {"S": "LEASE"},
            "leaseCounter": {"N": "9"},
            "ownerSwitchesSinceCheckpoint": {"N": "0"},
            "checkpoint": {"S": SEQUENCE},
            "checkpointSubSequenceNumber": {"N": "0"},
            "kdBatch": {"N": "7"},
            "kdTip": {"N": "1800000000"},
            "kdEnded": {"S": S1},
        },
        Lease(
            key=LeaseKey(S0),
            shard_id=S0,
            counter=9,
            checkpoint=at(),
            batch=7,
            stored_through=1_800_000_000,
            ended_parent=S1,
        ),
    ),
}
GOOD = WRITTEN["KCL 3.5, owned"][0]


def normal(item: dict[str, Any]) -> dict[str, Any]:
    return {k: {"SS": sorted(v["SS"])} if "SS" in v else v for k, v in item.items()}


@pytest.mark.parametrize(("item", "lease"), WRITTEN.values(), ids=WRITTEN)
def test_what_any_client_wrote_is_read(item: dict[str, Any], lease: Lease) -> None:
    assert lease_from_item(item) == lease


@pytest.mark.parametrize(("item", "lease"), WRITTEN.values(), ids=WRITTEN)
def test_what_we_write_says_the_same_and_more_explicitly(item: dict[str, Any], lease: Lease) -> None:
    written = normal(lease_to_item(lease))
    added = set(written) - set(item)
    assert added <= {"entityType", "checkpointSubSequenceNumber"}
    assert {name: written[name] for name in item} == normal(item)
    assert lease_from_item(written) == lease


def test_unknown_attributes_do_not_matter() -> None:
    item, lease = WRITTEN["KCL 3.5, owned"]
    assert lease_from_item({**item, "color": {"S": "blue"}, "n": {"NULL": True}}) == lease


def test_an_empty_pending_checkpoint_is_none() -> None:
    lease = lease_from_item({**GOOD, "pendingCheckpoint": {"S": ""}})
    assert lease is not None
    assert lease.pending_checkpoint is None


def test_parents_are_read_under_either_spelling() -> None:
    item = {name: value for name, value in GOOD.items() if name != "parentShardId"}
    lease = lease_from_item({**item, "parentShardIds": {"SS": [S2]}})
    assert lease is not None
    assert lease.parents == {S2}


@pytest.mark.parametrize(
    "entity_type", ["WORKER_METRIC_STATS", "LEADER", "CLIENT_VERSION_MIGRATION", "STREAM", "SOME_FUTURE_TYPE"]
)
def test_rows_of_another_kind_are_no_leases(entity_type: str) -> None:
    assert lease_from_item({**GOOD, "entityType": {"S": entity_type}}) is None


ABSENT = object()


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("leaseKey", ABSENT),
        ("leaseKey", {"S": ""}),
        ("leaseKey", {"N": "1"}),
        ("entityType", {"N": "1"}),
        ("leaseCounter", ABSENT),
        ("leaseCounter", {"S": "8"}),
        ("leaseCounter", {"N": "-1"}),
        ("leaseCounter", {"N": "1.5"}),
        ("leaseCounter", {"N": "1e3"}),
        ("leaseCounter", {"N": "9223372036854775808"}),
        ("leaseCounter", {"N": "8", "S": "8"}),
        ("leaseCounter", "8"),
        ("leaseCounter", {"N": "٨"}),
        ("ownerSwitchesSinceCheckpoint", ABSENT),
        ("ownerSwitchesSinceCheckpoint", {"NULL": True}),
        ("leaseOwner", {"S": ""}),
        ("leaseOwner", {"S": 5}),
        ("checkpointOwner", {"SS": ["a"]}),
        ("checkpoint", {"S": "bogus"}),
        ("checkpoint", {"S": ""}),
        ("checkpoint", {"N": "5"}),
        ("checkpoint", {"S": "-5"}),
        ("checkpoint", {"S": "٨"}),
        ("checkpointSubSequenceNumber", {"N": "-1"}),
        ("pendingCheckpoint", {"S": "bogus"}),
        ("pendingCheckpointState", {"N": "0"}),
        ("pendingCheckpointState", {"B": "text"}),
        ("parentShardId", {"L": [{"S": "a"}]}),
        ("parentShardId", {"SS": [""]}),
        ("childShardIds", {"S": "a"}),
        ("startingHashKey", {"S": "-1"}),
        ("startingHashKey", {"S": "340282366920938463463374607431768211456"}),
        ("startingHashKey", ABSENT),
        ("endingHashKey", ABSENT),
        ("endingHashKey", {"N": "5"}),
        ("throughputKBps", {"N": "NaN"}),
        ("throughputKBps", {"N": "-1"}),
        ("throughputKBps", {"N": "1e999"}),
        ("kdBatch", {"N": "-1"}),
        ("kdTip", {"N": "-1"}),
        ("kdChain", {"S": "../another"}),
        ("kdChain", {"N": "1"}),
        ("kdClaim", {"S": ""}),
    ],
)
def test_what_no_kcl_writes_is_refused_by_name(attribute: str, value: Any) -> None:
    item = {**GOOD, attribute: value}
    if value is ABSENT:
        del item[attribute]
    with pytest.raises(UnreadableItem) as caught:
        lease_from_item(item)
    assert caught.value.attribute == attribute
    assert caught.value.key == ("?" if attribute == "leaseKey" else S7)


def test_a_range_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(UnreadableItem, match="startingHashKey"):
        lease_from_item({**GOOD, "startingHashKey": {"S": "5"}, "endingHashKey": {"S": "4"}})


class TestStreams:
    MULTI = WRITTEN["KCL 3.5, multi-stream"][0]

    def test_either_application_reads_its_own_leases(self) -> None:
        assert lease_from_item(self.MULTI, multi_stream=True) is not None
        assert lease_from_item(GOOD, multi_stream=False) is not None

    def test_neither_application_touches_the_leases_of_the_other(self) -> None:
        with pytest.raises(UnreadableItem, match="belongs to a multi-stream application"):
            lease_from_item(self.MULTI, multi_stream=False)
        with pytest.raises(UnreadableItem, match="belongs to a single-stream application"):
            lease_from_item(GOOD, multi_stream=True)

    @pytest.mark.parametrize(
        ("change", "attribute"),
        [
            ({"streamName": {"S": "orders"}}, "streamName"),
            ({"streamName": {"S": "123456789012:orders:0"}}, "streamName"),
            ({"streamName": {"S": "123456789012:clicks:1680616058"}}, "shardId"),
            ({"shardId": {"S": S1}}, "shardId"),
            ({"shardId": ABSENT}, "shardId"),
            ({"streamName": ABSENT}, "streamName"),
        ],
    )
    def test_key_stream_and_shard_have_to_agree(self, change: dict[str, Any], attribute: str) -> None:
        item = {name: value for name, value in {**self.MULTI, **change}.items() if value is not ABSENT}
        with pytest.raises(UnreadableItem) as caught:
            lease_from_item(item)
        assert caught.value.attribute == attribute


JAVA_ROW = {
    "leaseKey": {"S": "host-a:1f0c"},
    "entityType": {"S": "WORKER_METRIC_STATS"},
    "lut": {"N": "1784600000"},
    "sts": {"M": {"C": {"L": [{"N": "41.5"}, {"N": "-1"}]}}},
    "opr": {"M": {"C": {"L": [{"N": "100"}]}}},
    "sup": {"N": "1"},
    "slu": {"N": "1784600000"},
    "properties": {"M": {"zone": {"S": "a"}, "odd": {"N": "1"}}},
}
JAVA_WORKER = WorkerRow(
    id=WorkerId("host-a:1f0c"),
    last_update=1784600000,
    averages={"C": (41.5, -1.0)},
    operating_range={"C": (100,)},
    support_code=1,
    support_update=1784600000,
    properties={"zone": "a"},
)


class TestWorkerRows:
    def test_a_java_row_is_read(self) -> None:
        assert worker_row_from_item(JAVA_ROW) == JAVA_WORKER

    def test_a_legacy_row_needs_no_entity_type(self) -> None:
        legacy = {"wid" if k == "leaseKey" else k: v for k, v in JAVA_ROW.items() if k != "entityType"}
        assert worker_row_from_item(legacy, key="wid") == JAVA_WORKER
        assert (
            worker_row_from_item({**legacy, "entityType": {"S": "WORKER_METRIC_STATS"}}, key="wid") == JAVA_WORKER
        )

    def test_in_the_lease_table_only_the_entity_type_makes_a_worker(self) -> None:
        assert worker_row_from_item(GOOD) is None
        assert worker_row_from_item({k: v for k, v in JAVA_ROW.items() if k != "entityType"}) is None

    @pytest.mark.parametrize("key", ["leaseKey", "wid"])
    def test_our_row_comes_back_as_it_was_written(self, key: str) -> None:
        row = replace(
            JAVA_WORKER,
            slot="worker-000",
            run_id="r",
            state=WorkerState.DRAINING,
            beat=3,
            zone="z",
            drain_requested=True,
            lag_ms=17,
            behind={LeaseKey("shardId-000000000001"): 17},
            stopped=(LeaseKey("shardId-000000000001"),),
            failing=(LeaseKey("shardId-000000000001"), LeaseKey("shardId-000000000002")),
        )
        assert worker_row_from_item(worker_row_to_item(row, key=key), key=key) == row

    @pytest.mark.parametrize(
        ("attribute", "value"),
        [
            ("lut", {"S": "now"}),
            ("lut", {"N": "1.5"}),
            ("sts", {"L": []}),
            ("sts", {"M": {"C": {"N": "1"}}}),
            ("sts", {"M": {"C": {"L": [{"S": "1"}]}}}),
            ("sts", {"M": {"C": {"L": [{"N": "x"}]}}}),
            ("sts", {"M": {"C": {"L": "x"}}}),
            ("opr", {"M": {"C": {"L": [{"N": "99.5"}]}}}),
            ("kdState", {"S": "asleep"}),
            ("kdDrain", {"BOOL": "yes"}),
            ("kdBeat", {"N": "-1"}),
            ("kdBehindMs", {"L": []}),
            ("kdStopped", {"L": [{"N": "1"}]}),
            ("kdFailing", {"L": [{"N": "1"}]}),
        ],
    )
    def test_what_nobody_writes_is_refused_by_name(self, attribute: str, value: Any) -> None:
        with pytest.raises(UnreadableItem) as caught:
            worker_row_from_item({**JAVA_ROW, attribute: value})
        assert (caught.value.key, caught.value.attribute) == ("host-a:1f0c", attribute)


CHANGES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a renewal": {"leaseCounter": {"N": "8124"}},
    "a renewal with its throughput": {"leaseCounter": {"N": "8124"}, "throughputKBps": {"N": "1.5"}},
    "a checkpoint": {"checkpoint": {"S": LATER}, "checkpointSubSequenceNumber": {"N": "0"}},
    "a sub-sequence number": {"checkpointSubSequenceNumber": {"N": "4"}},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_a_lease_is_parsed_from_its_changes(change: dict[str, Any]) -> None:
    before, lease = WRITTEN["KCL 3.5, owned"]
    item = {**before, **change}
    assert lease_from_changed_item(item, before, lease) == lease_from_item(item)


OF_OURS = {"kdBatch": {"N": "1"}, "kdTip": {"N": "1798761600"}, "kdStored": {"B": b""}}


@pytest.mark.parametrize(
    "change",
    [
        {"kdBatch": {"N": "2"}},
        {"kdTip": {"N": "1798761601"}},
        {"kdStored": {"B": packed(nothing_since(1798761600, at()))}},
    ],
)
def test_a_lease_of_ours_is_parsed_from_its_changes(change: dict[str, Any]) -> None:
    before = {**WRITTEN["KCL 3.5, owned"][0], **OF_OURS}
    lease = lease_from_item(before)
    assert lease is not None
    changed = lease_from_changed_item({**before, **change}, before, lease)
    assert changed == lease_from_item({**before, **change})
    assert changed != lease


@pytest.mark.parametrize(
    "change",
    [
        {"leaseOwner": {"S": "host-b:2"}},
        {"checkpointOwner": {"S": "host-a:1f0c"}},
        {"entityType": {"S": "LEADER"}},
        {"ownerSwitchesSinceCheckpoint": {"N": "1"}},
        {"parentShardId": {"SS": [S3]}},
        {"endingHashKey": {"S": "1"}},
        {"kdTip": {"N": "1"}},  # an attribute that was not there
        {"leaseCounter": {"N": "8124"}, "leaseOwner": {"S": "host-b:2"}},
    ],
)
def test_a_lease_with_other_changes_is_parsed_as_a_whole(change: dict[str, Any]) -> None:
    before, lease = WRITTEN["KCL 3.5, owned"]
    assert lease_from_changed_item({**before, **change}, before, lease) is None


def test_an_attribute_that_is_gone_is_no_change_but_another_row() -> None:
    before, lease = WRITTEN["KCL 3.5, owned"]
    item = {name: value for name, value in before.items() if name != "leaseOwner"}
    assert lease_from_changed_item(item, before, lease) is None


@pytest.mark.parametrize(
    "change",
    [
        {"leaseCounter": {"S": "7"}},
        {"leaseCounter": {"N": "-1"}},
        {"throughputKBps": {"N": "-1"}},
        {"checkpoint": {"S": "nowhere"}},
    ],
)
def test_a_change_that_no_kcl_writes_is_refused(change: dict[str, Any]) -> None:
    before, lease = WRITTEN["KCL 3.5, owned"]
    with pytest.raises(UnreadableItem):
        lease_from_changed_item({**before, **change}, before, lease)
