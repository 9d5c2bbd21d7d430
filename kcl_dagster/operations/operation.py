"""What an operation is: its name, title and settings, and what it does.

Each operation is one subclass of `Operation`. Its verb on the command line, its part of the config of the job
`<application>_admin` and its entry in the reference are derived from the class.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, Literal, Protocol, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo

from kcl_dagster.application import Application
from kcl_dagster.aws import Client
from kcl_dagster.leader.run_view import RunView
from kcl_dagster.operations.cost import Storing
from kcl_dagster.operations.open_application import OpenApplication
from kcl_dagster.operations.status import refuse_other_streams
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.storage import Store

NOTHING_CHANGED: Final = "nothing was changed"
IN_TERMINAL: Final[JsonDict] = {"only": "terminal"}
IN_JOB: Final[JsonDict] = {"only": "job"}
"""`json_schema_extra` of a setting that either the command line or the job has alone."""

Cell = str | int | float | bool
Row = Mapping[str, Cell]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows, the worst first."""

    rows: Sequence[Row]
    columns: Sequence[str]


Fact = Cell | Table | Sequence[str] | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of an operation. A terminal shows `lines`, or with --json the `document`; a job logs `lines`, and
    has `facts` and `document` as metadata."""

    lines: Sequence[str]
    facts: Mapping[str, Fact] = field(default_factory=dict)
    document: Any = None
    wrong: str | None = None
    """Why the run is to fail, and the command to end with 1."""

    is_well: bool = True
    """False: what was shown says what is wrong with the application. The command ends with 1, and the run succeeds
    unless `wrong` is set."""

    summary: str = ""
    view: Any = None
    """What a terminal shows instead of `lines`: anything that rich can print."""


class ExportFiles(Protocol):
    """Where operations read and write files: those of the terminal's user, or a folder of the deployment."""

    def put(self, name: str | None, text: str, *, force: bool) -> str | None:
        """Store a new file, or with `force` replace one, and return its place. None: it was printed. Raises
        ConfigurationError if it cannot be stored."""

    def get(self, name: str) -> str:
        """Raises ConfigurationError if it cannot be read."""


@dataclass(frozen=True, slots=True)
class OperationContext:
    """Where an operation is done: the application, its clients, and who asks."""

    application: Application
    client: Callable[[str], Client]
    runtime: Runtime
    by: str
    """Who asks. Goes into the audit."""

    files: ExportFiles
    runs: Callable[[], RunView]
    instance_settings: Callable[[str | None], Mapping[str, Any] | None]
    """Of the Dagster instance, by the folder of dagster.yaml; None if there is none."""

    stores: Callable[[], tuple[Mapping[str, Callable[[], Store]], str]] = lambda: ({}, "")
    """What the application writes to, and why its sink is not among it."""

    storing: Callable[[], Storing | None] = lambda: None
    """How the consumer's sink stores; None where no consumer is known."""

    show: Callable[[Any], None] = lambda _: None
    """Shows a line at once, before the answer: a text, or anything that rich can print."""

    is_only_named: bool = False
    """The application is known by the options of a command alone, and not from a project."""

    def open(self) -> OpenApplication:
        """Its tables and streams. Raises ConfigurationError for a stream that it does not read."""
        self.refuse_other_streams()
        return OpenApplication.open(
            self.application, self.client("dynamodb"), self.client("kinesis"), self.runtime, self.by
        )

    def refuse_other_streams(self) -> None:
        """Raises ConfigurationError for a stream that a command names, and the tables do not."""
        if self.is_only_named:
            refuse_other_streams(self.application, self.client("dynamodb"), self.runtime)

    def moment(self) -> str:
        """Now, for the name of a file."""
        return f"{datetime.fromtimestamp(self.runtime.clock.now(), UTC):%Y%m%dT%H%M%SZ}"


class Operation(BaseModel, ABC):
    """An operation with its settings. Flags are off on the command line unless given; `dry_run` is on in the job,
    because everybody who sees the launchpad can launch it. What is required has an example, which the launchpad is
    filled in with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: ClassVar[str]
    title: ClassVar[str]
    is_in_job: ClassVar[bool] = True
    run_tags: ClassVar[Sequence[str]] = ()
    """Of the run of the job: their value is the application's name."""

    @abstractmethod
    def run(self, context: OperationContext) -> Answer:
        """Raises KclError where it refuses. Then nothing was changed."""

    @classmethod
    def settings(cls, only: Literal["terminal", "job"]) -> dict[str, FieldInfo]:
        """The settings that the command line or the job has, by name."""
        extras = {name: one.json_schema_extra for name, one in cls.model_fields.items()}
        return {name: cls.model_fields[name] for name, extra in extras.items() if extra in (None, {"only": only})}


def choices(setting: FieldInfo) -> tuple[str, ...]:
    """The texts that a setting may have, if it may not have any."""
    options = (setting.annotation, *get_args(setting.annotation))
    return next((get_args(one) for one in options if get_origin(one) is Literal), ())


def dry_run() -> Any:
    """The setting of everything that changes something."""
    return Field(default=True, description="say what would be done, and do not do it")
