"""The base class of operations: name, title, settings and action.

Each operation is a subclass of `Operation`. Its command, its part of the config of the job `<application>_admin`
and its entry in the reference are derived from the class.
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
from kcl_dagster.operations.written_places import WrittenPlaces
from kcl_dagster.runtime import Runtime

NOTHING_CHANGED: Final = "nothing was changed"
IN_TERMINAL: Final[JsonDict] = {"only": "terminal"}
IN_JOB: Final[JsonDict] = {"only": "job"}
"""`json_schema_extra` of a setting that only the command line has, or only the job."""

Cell = str | int | float | bool
Row = Mapping[str, Cell]


@dataclass(frozen=True, slots=True)
class Table:
    """A table of results, with the worst row first."""

    rows: Sequence[Row]
    columns: Sequence[str]


Fact = Cell | Table | Sequence[str] | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of an operation. A terminal shows `lines`, or `document` if --json is given. A job logs `lines`,
    and has `facts` and `document` as metadata."""

    lines: Sequence[str]
    facts: Mapping[str, Fact] = field(default_factory=dict)
    document: Any = None
    wrong: str | None = None
    """If set, the job's run fails with this reason, and the command exits with 1."""

    is_well: bool = True
    """Whether nothing is wrong with the application. If False, the command exits with 1. The job's run fails only
    if `wrong` is set."""

    summary: str = ""
    view: Any = None
    """A value that a terminal shows instead of `lines`, in any form that rich can print."""


class ExportFiles(Protocol):
    """The place of exported files: the terminal user's folder, or a folder of the deployment."""

    def put(self, name: str | None, text: str, *, force: bool) -> str | None:
        """Store a new file, or replace a file if `force` is set. Returns its path or address, or None if the text
        was printed. Raises ConfigurationError if it cannot be stored."""

    def get(self, name: str) -> str:
        """Read a file. Raises ConfigurationError if it cannot be read."""


@dataclass(frozen=True, slots=True)
class OperationContext:
    """The environment of an operation: the application, its clients, and the person or program that runs it."""

    application: Application
    client: Callable[[str], Client]
    runtime: Runtime
    by: str
    """The person or program that runs the operation. It is written into the audit."""

    files: ExportFiles
    runs: Callable[[], RunView]
    instance_settings: Callable[[str | None], Mapping[str, Any] | None]
    """Returns the settings of the Dagster instance, given the folder of dagster.yaml. None if there is no
    instance."""

    places: Callable[[], WrittenPlaces] = WrittenPlaces
    """Returns the places to which the workers of the application write."""

    storing: Callable[[], Storing | None] = lambda: None
    """Returns how the consumer's sink stores records; None if no consumer is known."""

    show: Callable[[Any], None] = lambda _: None
    """Shows a line at once, before the result: a text, or anything that rich can print."""

    is_only_named: bool = False
    """Whether the application is known only from the options of a command, and not from a project."""

    def open(self) -> OpenApplication:
        """Open the tables and streams. Raises ConfigurationError if a command names a stream that the
        application does not read."""
        self.refuse_other_streams()
        return OpenApplication.open(
            self.application, self.client("dynamodb"), self.client("kinesis"), self.runtime, self.by
        )

    def refuse_other_streams(self) -> None:
        """Raise ConfigurationError if a command names a stream that the tables do not name."""
        if self.is_only_named:
            refuse_other_streams(self.application, self.client("dynamodb"), self.runtime)

    def moment(self) -> str:
        """The current time, for the name of a file."""
        return f"{datetime.fromtimestamp(self.runtime.clock.now(), UTC):%Y%m%dT%H%M%SZ}"


class Operation(BaseModel, ABC):
    """An operation with its settings. By default, `dry_run` is off on the command line, and on in the job, because
    every user who sees the launchpad can launch the job. A required setting has an example, with which the
    launchpad is filled in."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: ClassVar[str]
    title: ClassVar[str]
    is_in_job: ClassVar[bool] = True
    run_tags: ClassVar[Sequence[str]] = ()
    """The keys of tags of the job's run. The value of each tag is the application's name."""

    @abstractmethod
    def run(self, context: OperationContext) -> Answer:
        """Carry out the operation. Raises KclError if it is refused, before anything is changed."""

    @classmethod
    def settings(cls, only: Literal["terminal", "job"]) -> dict[str, FieldInfo]:
        """The settings of the command line or of the job, by name."""
        extras = {name: one.json_schema_extra for name, one in cls.model_fields.items()}
        return {name: cls.model_fields[name] for name, extra in extras.items() if extra in (None, {"only": only})}


def choices(setting: FieldInfo) -> tuple[str, ...]:
    """The texts that a setting allows. Empty if it allows any text."""
    options = (setting.annotation, *get_args(setting.annotation))
    return next((get_args(one) for one in options if get_origin(one) is Literal), ())


def dry_run() -> Any:
    return Field(default=True, description="say what would be done, and do not do it")
