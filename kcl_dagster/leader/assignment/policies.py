"""The policies, by the names under which they are configured."""

from random import Random
from typing import Final

from kcl_dagster.application import Application
from kcl_dagster.leader.assignment import balanced
from kcl_dagster.leader.assignment.policy import Policy
from kcl_dagster.leader.assignment.readiness import ReadersFirst
from kcl_dagster.leader.assignment.taker import TakerPolicy
from kcl_dagster.leader.assignment.variance import Variance
from kcl_dagster.model.lease_taking import TakingRules

# The interval at which a Java leader balances, in lease durations. It assigns leases every two lease durations, and
# balances at every third assignment.
KCL_BALANCES_EVERY: Final = 6.0
# The interval at which a 2.x worker looks for leases, in lease durations.
TAKER_RUNS_EVERY: Final = 2.0

_OURS: Final[dict[str, Policy]] = {
    "balanced": balanced.balanced,
    "count": balanced.count,
    "throughput": balanced.throughput,
}


def configured(application: Application, random: Random) -> Policy:
    """Return the policy that the application configures by its name, `policy.name`."""
    name = application.policy.name
    if name == "kcl":
        return ReadersFirst(Variance(random.shuffle))
    if name == "taker":
        return ReadersFirst(TakerPolicy(TakingRules(application.timings.lease_duration), random))
    return _OURS[name]


def balances_every(application: Application) -> float:
    """Return the seconds between two times at which the policy balances; 0 if it can balance at every tick."""
    durations = {"kcl": KCL_BALANCES_EVERY, "taker": TAKER_RUNS_EVERY}.get(application.policy.name, 0.0)
    return durations * application.timings.lease_duration
