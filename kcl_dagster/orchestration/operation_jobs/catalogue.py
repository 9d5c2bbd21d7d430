"""Which operations there are."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from dagster import Config

from kcl_dagster.orchestration.operation_jobs import forms, looking, steering
from kcl_dagster.orchestration.operation_jobs.answers import Answer
from kcl_dagster.orchestration.operation_jobs.worktop import Worktop


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation as the launchpad offers it."""

    name: str
    form: type[Config] | None
    run: Callable[[Worktop, Any], Answer]
    says: str


OPERATIONS: Final = (
    Operation(
        "status", None, looking.look_status, "Who reads what of {name}, how far behind, and what is unserved."
    ),
    Operation(
        "plan", None, looking.look_plan, "What the leader of {name} would do next, and why. Changes nothing."
    ),
    Operation(
        "doctor", forms.Doctor, looking.look_doctor, "Whether all that {name} depends on is as it should be."
    ),
    Operation("peek", forms.Peek, looking.look_peek, "Records of a shard that {name} reads, de-aggregated."),
    Operation(
        "cost",
        forms.CostForm,
        looking.look_cost,
        "What the tables of {name} cost a month: estimated, and measured.",
    ),
    Operation("pause", forms.Pausing, steering.do_pause, "Stop {name}, or some of its shards, until resumed."),
    Operation("resume", forms.Pausing, steering.do_resume, "Let {name} go on, or some of its shards."),
    Operation(
        "drain", forms.Drain, steering.do_drain, "Ask a worker of {name} to hand its leases over and to end."
    ),
    Operation("reset", forms.Reset, steering.do_reset, "Put the leases of {name} to another place in the stream."),
    Operation("export", forms.Export, steering.do_export, "Write the leases of {name} to a file, as JSON lines."),
    Operation(
        "import", forms.Import, steering.do_import, "Write exported leases into the table of {name}, unowned."
    ),
    Operation(
        "deregister",
        forms.Deregister,
        steering.do_deregister,
        "Remove the fan-out consumer of {name} from its streams.",
    ),
    Operation(
        "forget",
        forms.Forget,
        steering.do_forget,
        "Delete the leases of streams that {name} does not read any more, after an export.",
    ),
)
