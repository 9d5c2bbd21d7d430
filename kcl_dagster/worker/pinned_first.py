"""Workers with chains whose leases are pinned to batches that were begun before: these are finished first."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from kcl_dagster.worker.batch import D
from kcl_dagster.worker.chain_protocol import ChainProtocol
from kcl_dagster.worker.holdings import Holdings
from kcl_dagster.worker.pending import is_pinned
from kcl_dagster.worker.protocol import BatchProtocol, never
from kcl_dagster.worker.report import BatchReport, Outcome


@dataclass(slots=True)
class PinnedFirst(Generic[D]):
    """Rounds of a worker. A pinned batch may have been stored without a chain. So it is read again exactly, and
    stored by the protocol and under the names with which it was begun.

    A record processor binds no sink to a range. If its records may have ended processes, they are read without a
    chain, too: losses are counted in pins."""

    holdings: Holdings
    pinned: BatchProtocol[D]
    chains: ChainProtocol[D]

    def run_once(self, abandon: Callable[[], bool] = never) -> BatchReport:
        """See `ChainProtocol.run_once`."""
        if any(is_pinned(holding.lease) for holding in self.holdings.holdings()):
            report = self.pinned.run_once(abandon)
            # Behind a processor's pin there may be no record any more, which must not hold back the other leases.
            if any(lease.outcome is not Outcome.IDLE for lease in report.leases):
                return report
        return self.chains.run_once(abandon)

    def close(self) -> None:
        self.pinned.close()
        self.chains.close()
