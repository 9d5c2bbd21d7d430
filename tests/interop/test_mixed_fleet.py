"""Java workers and ours in one fleet, under a Java leader and under ours."""

from collections import Counter

import pytest

from kcl_dagster.application import Application
from kcl_dagster.emulator import Emulator
from kcl_dagster.worker.events import EventKind
from tests.interop.conftest import JavaFleet, Stream, Tables, Traffic, until
from tests.interop.java_kcl import Kcl
from tests.interop.ours import leading, working
from tests.interop.test_handover import PATIENCE, assert_in_order, texts

SHARDS = 4
JAVA_BELIEVES = 150.0  # a Java worker asks for the lock every half minute and assigns after two lease durations


def test_both_lead_in_turn_and_hand_leases_over_in_both_directions(
    kcl: Kcl, aws: Emulator, application: Application, stream: Stream, tables: Tables, java: JavaFleet
) -> None:
    stream.create(SHARDS)
    with (
        Traffic(stream, per_second=40) as traffic,
        java.worker("java-1") as first,
        java.worker("java-2") as second,
    ):
        until(lambda: len(tables.leases()) == SHARDS, PATIENCE, "Java makes the leases", first)
        until(lambda: None not in tables.counts(), PATIENCE, "Java assigns them", first, second)
        java_leader = tables.leader()
        assert java_leader in {"java-1", "java-2"}

        # A Java leader gives leases of Java workers to ours, which joins while all is running.
        with leading(aws, application) as leader, working(aws, application) as ours:
            until(lambda: tables.counts()[ours.id] >= 1, JAVA_BELIEVES, "Java hands leases to us", ours, first)
            until(lambda: len(ours.rows()) > 20, 60.0, "we consume them", ours)
            assert not any(report.leading for report in leader.reports)
            assert tables.leader() == java_leader
            handed_by_java = first.said("SHUTDOWN_REQUESTED") + second.said("SHUTDOWN_REQUESTED")
            assert handed_by_java, "asked to finish, not robbed"

            # It stops; we lead at once, and give what it leaves behind to those who are left.
            leaving, staying = (first, second) if java_leader == first.id else (second, first)
            leaving.stop()
            until(lambda: leader.leads, 30.0, "we lead", leader)
            until(
                lambda: set(tables.counts()) <= {ours.id, staying.id} and tables.counts().total() == SHARDS,
                180.0,
                "the leases of the one who left are served",
                leader,
                ours,
                staying,
            )
            staying.stop()
            until(lambda: tables.counts()[ours.id] == SHARDS, 180.0, "we serve everything", leader, ours)
            assert not ours.told(EventKind.HANDOFF_DONE)

            # A third Java worker joins: our leader asks our worker to hand leases over to it.
            with java.worker("java-3") as third:
                until(
                    lambda: tables.counts()[third.id] >= 1 and not _in_handoff(tables),
                    180.0,
                    "we hand leases to a Java worker that joins",
                    leader,
                    ours,
                    third,
                )
                third.wait(lambda worker: len(worker.records) > 5, 60.0, "consumes them")
                assert ours.told(EventKind.HANDOFF_DONE)
                assert leader.leads

                # Our leader resigns: a Java worker leads again while ours go on.
                leader.resign()
                until(lambda: tables.leader() in {staying.id, third.id}, JAVA_BELIEVES, "Java leads again", staying)
                until(lambda: tables.counts()[ours.id] >= 1, JAVA_BELIEVES, "and we are served", ours, third)
                before = len(ours.rows())
                until(lambda: len(ours.rows()) > before + 10, 60.0, "we go on", ours)

                # The end: everything arrives.
                traffic.stop()
                until(
                    lambda: set(texts(first, second, third, ours)) >= set(stream.produced),
                    PATIENCE,
                    "everything is read",
                    ours,
                    third,
                )
                until(lambda: not _in_handoff(tables), 60.0, "no handoff is stuck", ours, third)
                ours.stop()
                third.stop()

    assert not leader.errors()
    assert not ours.processing.conflicts()
    assert len(tables.leases()) == SHARDS, "no lease lost"
    missing = Counter(stream.produced) - Counter(texts(first, second, third, ours))
    assert not missing, "no record lost"
    assert not Counter(texts(ours)) - Counter(set(texts(ours))), "ours stored each record once"
    for worker in (first, second, third):
        assert_in_order(worker)


def _in_handoff(tables: Tables) -> list[str]:
    return [key for key, item in tables.leases().items() if "checkpointOwner" in item]


def test_our_leader_moves_leases_from_java_to_java(
    kcl: Kcl, aws: Emulator, application: Application, stream: Stream, tables: Tables, java: JavaFleet
) -> None:
    if kcl.layout == "legacy":
        pytest.skip("begins with our tables, and a new application has one, which KCL 3.0-3.4 cannot read")
    stream.create(2)
    with leading(aws, application) as leader, Traffic(stream, per_second=20):
        until(lambda: len(tables.leases()) == 2, 60.0, "we make the leases", leader)
        with java.worker("java-1") as first:
            until(lambda: tables.counts()[first.id] == 2, PATIENCE, "Java is given both", leader, first)
            with java.worker("java-2") as second:
                until(
                    lambda: tables.counts()[second.id] == 1 and not _in_handoff(tables),
                    PATIENCE + 60.0,
                    "one is handed over",
                    leader,
                    first,
                    second,
                )
                second.wait(lambda worker: len(worker.records) > 5, 60.0, "consumes it")
                assert first.said("SHUTDOWN_REQUESTED")
                assert ("balance", second.id) in {(kind, to) for _, to, kind in leader.moves()}
    assert not leader.errors()
