"""Java workers: they announce themselves twice a minute, and leave without a word."""

from kcl_dagster.model.lease import Lease, WorkerId
from kcl_dagster.model.worker_row import WorkerRow
from tests.integration.leader.town import Town

REPORT_SECONDS = 30.0


class JavaWorker:
    """Renews what it is given, and writes its row every half minute."""

    def __init__(self, town: Town, name: str) -> None:
        self.town = town
        self.id = WorkerId(name)
        self.alive = True
        self.reported_at = -REPORT_SECONDS

    def step(self) -> None:
        now = self.town.clock.now()
        if not self.alive:
            return
        if now - self.reported_at >= REPORT_SECONDS:
            self.reported_at = now
            self.town.workers_table.put(WorkerRow(self.id, int(now), averages={}, operating_range={}))
        for lease in self.town.scan().values():
            if lease.actual_owner == self.id:
                self._renew(lease)

    def _renew(self, lease: Lease) -> None:
        renewed = self.town.leases.renew(lease)
        if renewed.in_handoff:
            self.town.leases.transfer(renewed)


def test_a_java_worker_that_left_gets_nothing_back_although_its_row_still_looks_alive(town: Town) -> None:
    java = JavaWorker(town, "java-1")
    for _ in range(4):
        java.step()
        town.step()
    assert set(town.owners().values()) == {"java-1"}
    ours = town.start("worker-000")
    java.reported_at = 0.0
    java.step()  # the last thing it does is to say that it lives
    java.alive = False
    town.until(lambda _: set(town.owners().values()) == {ours.id})
    assert town.clock.now() - java.reported_at < 2 * REPORT_SECONDS, "its row has not expired yet"
    while town.clock.now() - java.reported_at < 4 * REPORT_SECONDS:
        town.step()
        assert set(town.owners().values()) == {ours.id}
        assert not any(lease.in_handoff for lease in town.scan().values())


def test_a_java_worker_that_only_stumbled_is_trusted_again_when_its_row_changes(town: Town) -> None:
    java = JavaWorker(town, "java-1")
    ours = town.start("worker-000")
    for _ in range(6):
        java.step()
        town.step()
    assert set(town.owners().values()) == {"java-1", ours.id}
    town.until(lambda _: set(town.owners().values()) == {ours.id})
    for _ in range(40):
        java.step()
        town.step()
    assert "java-1" in town.owners().values()
