"""Which operations there are."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kcl_dagster.orchestration.operation_jobs import forms, looking, steering
from kcl_dagster.orchestration.operation_jobs.answers import Answer
from kcl_dagster.orchestration.operation_jobs.worktop import Worktop


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation as the launchpad offers it."""

    name: str
    form: type[forms.Settings]
    run: Callable[[Worktop, Any], Answer]
    says: str
    tags: Mapping[str, str] = field(default_factory=dict)
    """Of a run, beside those of all operations. The run adds them when it begins."""


OPERATIONS: Final = (
    Operation("status", forms.Settings, looking.look_status, "who reads what, how far, and what is unserved"),
    Operation("plan", forms.Settings, looking.look_plan, "what the leader would do next, and why; writes nothing"),
    Operation("doctor", forms.Doctor, looking.look_doctor, "whether all that it depends on is as it should be"),
    Operation("peek", forms.Peek, looking.look_peek, "records of a shard, de-aggregated"),
    Operation("cost", forms.CostForm, looking.look_cost, "what the tables cost a month: estimated, and measured"),
    Operation("pause", forms.Pausing, steering.do_pause, "stop it, or some shards or workers, until resumed"),
    Operation("resume", forms.Pausing, steering.do_resume, "let it go on, or some shards or workers"),
    Operation("drain", forms.Drain, steering.do_drain, "ask a worker to hand its leases over and to end"),
    Operation("reset", forms.Reset, steering.do_reset, "put leases to another place in the stream"),
    Operation("export", forms.Export, steering.do_export, "write the leases to a file, as JSON lines"),
    Operation("import", forms.Import, steering.do_import, "write exported leases, unowned"),
    Operation(
        "deregister", forms.Deregister, steering.do_deregister, "remove the fan-out consumer from its streams"
    ),
    Operation("forget", forms.Forget, steering.do_forget, "delete the leases of former streams, after an export"),
)
