"""`kcl-dagster`: the commands for operators.

Each verb writes its result to standard output, and an error as one line to standard error. The exit status is 0 if
all is well, 1 if something is wrong with the application, and 2 if this could not be found out.
"""

import argparse
import logging
import os
import signal
import socket
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError
from rich.console import Console

from kcl_dagster import __version__, aws
from kcl_dagster.application import Application, refusal
from kcl_dagster.errors import ConfigurationError, KclError
from kcl_dagster.leader.construction import open_leader
from kcl_dagster.leader.run_view import RunView
from kcl_dagster.leader.standby import lead
from kcl_dagster.leader.tick_report import TickReport
from kcl_dagster.operations.all_operations import OPERATIONS
from kcl_dagster.operations.cost import Storing
from kcl_dagster.operations.inspections import StatusOperation
from kcl_dagster.operations.operation import OperationContext
from kcl_dagster.operations.planning import decisions
from kcl_dagster.operations.printable import printable
from kcl_dagster.operations.project.constraints import installed
from kcl_dagster.operations.project.skeleton import PYTHONS, Project, render, write
from kcl_dagster.operations.rights import Catalogs
from kcl_dagster.operations.status import Status, known_streams
from kcl_dagster.operations.terminal import (
    DeploymentVerbs,
    LocalFiles,
    add_operation,
    chosen,
    instance_settings,
    reader,
    refuse_missing_home,
    run_operation,
    whoami,
)
from kcl_dagster.operations.unread_lag import Unread
from kcl_dagster.operations.watching import LOOK_SECONDS, watch, watch_json
from kcl_dagster.operations.written_places import WrittenPlaces
from kcl_dagster.runtime import system
from kcl_dagster.tables.lock import STANDBY
from kcl_dagster.telemetry.otlp import open_tick_traces
from kcl_dagster.worker.kclpy import install_stand_in

if TYPE_CHECKING:
    from kcl_dagster.orchestration.consumer import Consumer
    from kcl_dagster.orchestration.definitions import Built
    from kcl_dagster.orchestration.resources import KclResource

WELL: Final = 0
WRONG: Final = 1
UNANSWERED: Final = 2
# If the options name another profile or role, these fields of the KclResource no longer apply.
_FIELDS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "profile_name": ("aws_access_key_id", "aws_secret_access_key", "aws_session_token"),
    "role_arn": ("external_id",),
}


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] == ["emulator"]:  # it has options of its own
        return _emulator(given[1:])
    if not given:
        parser().print_help()
        return WELL
    options = parser().parse_args(given)
    options.given = given
    if options.target is None:
        options.target = getattr(options, "trailing_target", None)
    try:
        answer: int = options.run(options)
    except KclError as error:
        sys.stderr.write(f"kcl-dagster: {printable(' '.join(str(error).split()))}\n")
        return UNANSWERED
    return answer


def parser() -> argparse.ArgumentParser:
    """The parser of all verbs and their options."""
    made = argparse.ArgumentParser(prog="kcl-dagster", description="Look at and steer a KCL application.")
    made.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    verbs = made.add_subparsers(required=True, metavar="VERB")
    named = argparse.ArgumentParser(add_help=False)
    named.add_argument(
        "target",
        nargs="?",
        help="module:attribute of a consumer, an Application or definitions; --application is the alternative",
    )
    named.add_argument("--application", help="name of the application, which is also the name of its lease table")
    named.add_argument(
        "--stream",
        action="append",
        help="stream that --application reads; repeat it for several; default: the streams that its tables name",
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--region", help="AWS region; default: the region that boto3 finds")
    common.add_argument("--endpoint-url", help="URL of an emulator or a private endpoint")
    common.add_argument("--profile", help="profile of the shared AWS configuration")
    common.add_argument("--role-arn", help="ARN of a role to assume")

    def verb(
        name: str, run: Callable[[argparse.Namespace], int], text: str, *, of_all: bool = False
    ) -> argparse.ArgumentParser:
        parents = [common] if of_all else [named, common]
        added = verbs.add_parser(name, help=text, description=text, parents=parents)
        added.set_defaults(run=run, **({"target": None} if of_all else {}))
        return added

    added = {one.name: add_operation(one, verb, _context) for one in OPERATIONS}
    status = added["status"]
    status.set_defaults(run=_status)
    status.add_argument(
        "--watch",
        nargs="?",
        type=reader(StatusOperation.model_fields["complete_within"]),  # the same unit and limits
        const=LOOK_SECONDS,
        metavar="SECONDS",
        help=f"show the state again every SECONDS, until Ctrl-C; default: {LOOK_SECONDS:g}; with --json, one "
        "document per line",
    )
    standby = verb("lead", _lead, "lead when no other leader is alive (standby); launches no runs")
    standby.add_argument("--once", action="store_true", help="lead for one tick, then resign")
    bounded = verb(
        "catch-up", _catch_up, "read the records that are in the streams now, store them, and end; needs no fleet"
    )
    bounded.add_argument(
        "--through",
        metavar="MOMENT",
        help="read the records that had arrived by then, such as 2026-01-31T12:00:00Z",
    )
    bounded.add_argument(
        "--pipes",
        action="store_true",
        help="for a Spark driver that a Pipes client of Dagster has launched: report to its Dagster run, and exit "
        "with 0 once the report is made",
    )
    for name in ("--dagster-pipes-context", "--dagster-pipes-messages"):  # some Pipes clients add them
        bounded.add_argument(name, help=argparse.SUPPRESS)
    DeploymentVerbs(_context, _client, _roles, _exports, _lake_key, _is_bounded, _catalogs).register(verb)
    init = verbs.add_parser(
        "init",
        help="write a project: a consumer, tests that pass, and the files that deploy it",
        description="Write a project: a consumer, tests that pass, and the files that deploy it.",
    )
    init.set_defaults(run=_init, target=None)
    init.add_argument("name", help="name of the project and its module; the application is called NAME-to-lake")
    init.add_argument("--stream", help="name of the stream; default: NAME")
    init.add_argument("--lake", help="s3://bucket/prefix of the data; default: s3://NAME-lake/NAME")
    init.add_argument("--directory", type=Path, help="folder to write; default: NAME")
    made_ready = verbs.add_parser(
        "prepare",
        help="make an archive of Spark's classes, once per machine or image, so that workers start sooner",
        description=(
            "Make an archive of the classes that Spark loads, in ~/.cache/kcl-dagster, or below $XDG_CACHE_HOME. "
            "A worker's local Spark session uses it, and needs half of the CPU to start. Takes twenty seconds, and "
            "180 MB."
        ),
    )
    made_ready.set_defaults(run=_prepare, target=None)
    verbs.add_parser("emulator", help="run an embedded AWS for trials", add_help=False)
    return made


def _application(options: argparse.Namespace) -> Application:
    """The application that the options name. If they name none, raises ConfigurationError with an explanation."""
    if options.target:
        found = _found(options).application
        reads = [stream.name for stream in found.streams]
        given = [name.rpartition("/")[2] for name in options.stream or ()]  # an ARN ends with the stream's name
        others = [name for name in given if name not in reads]
        if others:
            raise ConfigurationError(
                f"application {found.name} does not read {', '.join(others)}, but {', '.join(reads)}"
            )
        return found
    if not options.application:
        raise ConfigurationError("say which application: module:attribute, or --application NAME --stream NAME")
    if not options.stream:
        options.stream = _streams_by_tables(options)
    return _named(options.application, options.stream)


def _named(name: str, streams: Sequence[str]) -> Application:
    try:
        return Application(name=name, streams=tuple(streams), multi_stream=len(streams) > 1)
    except ValidationError as error:
        raise ConfigurationError(f"application {name}: {refusal(error)}") from None
    except ValueError as error:
        raise ConfigurationError(f"application {name}: {error}") from None


def _streams_by_tables(options: argparse.Namespace) -> list[str]:
    """The streams whose names are in the tables of the application. Raises ConfigurationError if there are none."""
    any_stream = _named(options.application, ["unknown"])
    streams = known_streams(any_stream, _client(options, "dynamodb"), system())
    if not streams:
        raise ConfigurationError(
            f"add --stream NAME: there are no tables of application {options.application} here that name its stream"
        )
    return streams


def _context(options: argparse.Namespace) -> OperationContext:
    application = _application(options)
    return OperationContext(
        application,
        partial(_client, options),
        system(),
        whoami(),
        LocalFiles(),
        partial(_runs, application),
        lambda home: instance_settings(home or os.environ.get("DAGSTER_HOME")),
        partial(_places, options),
        partial(_storing, options),
        is_only_named=not options.target,
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """The result of loading `module:attribute`: an application, its consumer if there is one, and the project's
    connection to AWS."""

    application: Application
    consumer: "Consumer | None" = None
    resource: "KclResource | None" = None
    built: "Built | None" = None
    resources: Mapping[str, Any] = field(default_factory=dict)
    """The resources of the definitions that were named."""


def _found(options: argparse.Namespace) -> _Found:
    """Load the application that the options name, with its consumer and its connection. The connection is the first
    of these that exists:

    - the connection of the named definitions, or of the definitions that were built from the named consumer,
    - the KclResource in the named module, if there is exactly one.

    Raises ConfigurationError if definitions with different connections were built from the consumer.
    """
    found = _load(options.target)
    if isinstance(found, Application):
        return _Found(found)
    from dagster import Definitions

    from kcl_dagster.orchestration.consumer import Consumer
    from kcl_dagster.orchestration.definitions import built_of, built_with
    from kcl_dagster.orchestration.resources import KclResource

    if not isinstance(found, (Consumer, Definitions)) and callable(found):
        found = found()  # a function that returns definitions, for example one decorated with dg.definitions
    resources: dict[str, Any] = {}
    known: Built | None
    if isinstance(found, Definitions):
        resources = dict(found.resources or {})
        inside = built_of(found)
        name: str = options.application or next(iter(inside), "")
        if name not in inside or (len(inside) > 1 and not options.application):
            names = ", ".join(sorted(inside)) or "none"
            raise ConfigurationError(f"{options.target} has the applications {names}: say which with --application")
        known = inside[name]
        found = known.consumer
    elif isinstance(found, Consumer):
        known = _only(options, built_with(found))
    else:
        raise ConfigurationError(
            f"{options.target} is neither a consumer nor an Application nor Definitions: {type(found).__name__}"
        )
    resource = None if known is None else resources.get(known.kcl_key) or known.resource
    if not isinstance(resource, KclResource):
        beside = [one for one in vars(_module(options.target)).values() if isinstance(one, KclResource)]
        resource = beside[0] if len(beside) == 1 else None
    return _Found(found.application, found, resource, known, resources)


def _only(options: argparse.Namespace, made: "Sequence[Built]") -> "Built | None":
    """Return the newest of the definitions that were built from a consumer; None if there are none. Raises
    ConfigurationError if their resources differ."""
    if not made:
        return None
    newest = made[-1]
    if any((one.kcl_key, one.resources) != (newest.kcl_key, newest.resources) for one in made):
        raise ConfigurationError(
            f"{options.target} is the consumer of {len(made)} definitions, whose resources differ: name one of "
            "these definitions as module:attribute"
        )
    return newest


def _load(target: str) -> Any:
    module, attribute = _module(target), target.partition(":")[2]
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        raise ConfigurationError(f"{target} cannot be loaded: {error}") from None


def _module(target: str) -> Any:
    module, colon, _ = target.partition(":")
    if not colon:
        raise ConfigurationError(f"{target} is not of the form module:attribute")
    if "" not in sys.path:
        sys.path.insert(0, "")  # as python -m does: the user's project is in the current directory
    install_stand_in()  # the user's project may import the base class of its processors
    try:
        return import_module(module)
    except KclError:
        raise
    except Exception as error:  # any error of the project's code
        raise ConfigurationError(f"{target} cannot be loaded: {_why(error)}") from error


def _why(error: Exception) -> str:
    """Describe an error of the project's code in one line, with the file and the line where it was raised."""
    paths = sysconfig.get_paths()  # in a virtual environment, packages are not below the standard library
    libraries = (paths["stdlib"], paths["purelib"], paths["platlib"], str(Path(__file__).parent), "<frozen")
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(libraries)]
    where = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    if isinstance(error, KeyError) and frames and frames[-1].filename in {os.__file__, "<frozen os>"}:
        return f"the environment variable {error.args[0]} is not set{where}"
    if isinstance(error, ImportError):
        return f"{error}{where}"
    said = refusal(error) if isinstance(error, ValidationError) else error
    return f"{type(error).__name__}: {said}{where}"


def _client(options: argparse.Namespace, service: str) -> aws.Client:
    return aws.client(service, **_access(options, service))


def _access(options: argparse.Namespace, service: str) -> dict[str, Any]:
    """The fields of the connection to a service. A value in the options replaces the value of the project's
    connection."""
    found = _found(options) if options.target else None
    settings: dict[str, str] = {}
    if found is not None and found.resource is not None:
        settings = found.resource.connection(service, found.application)
    given = {
        "region": options.region,
        "endpoint_url": options.endpoint_url,
        "profile": options.profile,
        "role_arn": options.role_arn,
    }
    settings |= {name: value for name, value in given.items() if value is not None}
    # This comes last because, for Kinesis, the region in a stream's ARN replaces `--region`.
    if service == "kinesis":
        settings |= _kinesis_access(options, found)
    return settings


def _kinesis_access(options: argparse.Namespace, found: _Found | None) -> dict[str, str]:
    """The fields of the connection to Kinesis that follow from the ARNs of the streams. The ARNs come from the
    project if there is one, otherwise from the options."""
    if found is not None:
        return found.application.kinesis_access
    name, streams = getattr(options, "application", None), getattr(options, "stream", None)
    return _named(name, streams).kinesis_access if name and streams else {}


def _places(options: argparse.Namespace) -> WrittenPlaces:
    """Return the places to which the application's workers write. Empty if no project is named."""
    if not options.target:
        return WrittenPlaces()
    from kcl_dagster.orchestration.stores import written_places

    found = _found(options)
    sink = None if found.consumer is None else found.consumer.sink
    return written_places(found.application, sink, lambda: _access(options, "s3"))


def _storing(options: argparse.Namespace) -> Storing | None:
    """How the consumer's sink stores records. None if an application is named without its consumer."""
    found = _found(options) if options.target else None
    if found is None or found.consumer is None:
        return None
    from kcl_dagster.orchestration.stores import storing_of

    return storing_of(found.consumer.sink)


def _roles(options: argparse.Namespace) -> dict[str, str]:
    services = ("kinesis", "dynamodb", "cloudwatch", "s3")
    roles = {service: _access(options, service).get("role_arn") for service in services}
    return {service: role for service, role in roles.items() if role is not None}


def _lake_key(options: argparse.Namespace) -> str | None:
    return _access(options, "s3").get("kms_key")


def _exports(options: argparse.Namespace) -> str | None:
    built = _found(options).built if options.target else None
    return None if built is None else built.exports


def _catalogs(options: argparse.Namespace) -> Catalogs:
    found = _found(options) if options.target else None
    if found is None or found.consumer is None:
        return Catalogs()
    from kcl_dagster.orchestration.stores import catalogs_of

    return catalogs_of(found.consumer.sink)


def _is_bounded(options: argparse.Namespace) -> bool:
    built = _found(options).built if options.target else None
    return built is not None and built.is_bounded


# --- init ---


def _init(options: argparse.Namespace) -> int:
    name: str = options.name
    python = PYTHONS.get(f"{sys.version_info[0]}.{sys.version_info[1]}", PYTHONS["3.12"])
    # The project's tests use the first hour of yesterday, which has ended whenever they run.
    day = datetime.now(UTC).date() - timedelta(days=1)
    try:
        project = Project(name, options.stream or name, options.lake or f"s3://{name}-lake/{name}", python, day)
    except ValidationError as error:
        raise ConfigurationError(f"project {name}: {refusal(error)}") from None
    folder = options.directory or Path(name)
    texts = render(project, installed())
    write(folder, texts)
    for path in texts:
        sys.stdout.write(f"{printable(str(folder / path))}\n")
    sys.stdout.write(f"\nNext: cd {printable(str(folder))}, then pytest. README.md has the rest.\n")
    return WELL


# --- prepare ---


def _prepare(_options: argparse.Namespace) -> int:
    from kcl_dagster.operations.preparation import prepare  # imports Spark

    sys.stdout.write(f"{printable(prepare(os.environ))}\n")
    return WELL


# --- status ---


def _status(options: argparse.Namespace) -> int:
    context = _context(options)
    if options.watch is None:
        return run_operation(StatusOperation, context, options)
    context.refuse_other_streams()
    operation, unread = chosen(StatusOperation, options), Unread(context.client("kinesis"), context.runtime)

    def look() -> Status:
        return operation.look(context, unread)

    if options.json:
        watch_json(look, options.watch, context.runtime.clock)
    else:
        watch(look, options.watch, Console(), context.runtime.clock)
    return WELL


# --- lead ---


def _lead(options: argparse.Namespace) -> int:
    application, runtime = _application(options), system()
    if not options.target:
        _refuse_unknown_starts(application, options)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    leader = open_leader(
        application,
        dynamodb=_client(options, "dynamodb"),
        kinesis=_client(options, "kinesis"),
        identity=_standby(),
        runtime=runtime,
    )
    last = TickReport()

    def tell(report: TickReport) -> None:
        nonlocal last
        before, last = _standing(last), report
        for line in (*([_standing(report)] if _standing(report) != before else []), *decisions(report)):
            sys.stdout.write(f"{printable(line)}\n")
        for problem in report.problems:
            sys.stderr.write(f"{printable(problem)}\n")
        sys.stdout.flush()
        if options.once:
            stop.set()

    with open_tick_traces(application, _standby(), runtime, logging.getLogger(__name__)) as traces:

        def receive(report: TickReport) -> None:
            tell(report)
            if traces is not None:
                traces.tick(report)

        lead(leader, runtime.clock, stop.is_set, receive, lambda: replace(_runs(application), launches=False))
    return WELL if last.ok else WRONG


def _refuse_unknown_starts(application: Application, options: argparse.Namespace) -> None:
    """Raise ConfigurationError if the tables have no start position for one or more of the streams. The leader
    would store the default one, and the consumer would never read from its own."""
    known = known_streams(application, _client(options, "dynamodb"), system())
    unknown = [stream.name for stream in application.streams if stream.name not in known]
    if unknown:
        of = f"of application {application.name}"
        tables = f"the tables {of} do not have" if known else f"there are no tables {of} here that have"
        raise ConfigurationError(
            f"{tables} the start position of {', '.join(unknown)}: name the consumer, as module:attribute"
        )


# --- catch-up ---


def _catch_up(options: argparse.Namespace) -> int:
    """Run the catch-up job in this process. Its run is stored in the Dagster instance of DAGSTER_HOME, if that is
    set. With --pipes, this process reports to the run that has launched it."""
    if options.pipes:
        return _catch_up_in_driver(options)
    from dagster import DagsterInstance

    from kcl_dagster.orchestration.catch_up import moment_of, run_here

    built, resources = _to_catch_up(options)
    moment_of(options.through)  # an invalid value is refused here, and not in the run
    home = os.environ.get("DAGSTER_HOME")
    if home:
        refuse_missing_home(home)
    with DagsterInstance.get() if home else DagsterInstance.ephemeral() as instance:
        answer = run_here(built.consumer, built.translator, resources, instance, options.through)
    sys.stdout.write(f"{printable(answer.text)}\n")
    return WELL if answer.is_well else WRONG


def _catch_up_in_driver(options: argparse.Namespace) -> int:
    if options.through is not None:
        raise ConfigurationError(
            "--through cannot be used with --pipes: the Dagster run sets the moment to read through"
        )
    from kcl_dagster.orchestration.catch_up import refuse_missing, summary
    from kcl_dagster.orchestration.remote_driver import reporting, run_in_driver

    with reporting() as pipes:
        built, resources = _to_catch_up(options)
        refuse_missing(built.consumer, resources)
        outcome = run_in_driver(built.consumer, built.translator, resources, pipes)
        sys.stdout.write(f"{printable(summary(built.consumer.application.name, outcome))}\n")
    return WELL


def _to_catch_up(options: argparse.Namespace) -> "tuple[Built, dict[str, Any]]":
    """The consumer that the options name, with all resources of its bounded run."""
    found = _found(options) if options.target else None
    if found is None or found.consumer is None:
        raise ConfigurationError("say which consumer, as module:attribute: catch-up needs its code and its sink")
    from kcl_dagster.orchestration.definitions import Built
    from kcl_dagster.orchestration.spark_resource import KclSparkResource

    built = found.built or Built(found.consumer, found.resource)
    resources = {**built.resources, **found.resources}
    resources |= {
        "kcl": _connected(options, built, resources),
        "spark": resources.get(built.spark_key) or KclSparkResource(),
    }
    return built, resources


def _connected(options: argparse.Namespace, built: "Built", resources: Mapping[str, Any]) -> Any:
    """The project's KclResource, with the values in the options. A value in the options replaces the resource's
    value for all services and its values for single services, except those for S3. Raises ConfigurationError if the
    resource cannot take the options."""
    from kcl_dagster.orchestration.resources import KclResource

    given = {
        "region_name": options.region,
        "endpoint_url": options.endpoint_url,
        "profile_name": options.profile,
        "role_arn": options.role_arn,
    }
    named = {name: value for name, value in given.items() if value}
    own = resources.get(built.kcl_key) or built.resource or KclResource()
    if not named:
        return own
    replaced = {f"{service}_{name}" for service in ("kinesis", "dynamodb", "cloudwatch", "sts") for name in named}
    replaced |= {field for name in named for field in _FIELDS_OF.get(name, ())}
    try:
        fields = {name: (field.default, getattr(own, name)) for name, field in type(own).model_fields.items()}
        kept = {name: value for name, (default, value) in fields.items() if value != default}
        return type(own)(**{name: value for name, value in kept.items() if name not in replaced} | named)
    except (AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"the project's {type(own).__name__} cannot take the connection in the options ({error}): leave the "
            "options out, or name definitions with a KclResource"
        ) from error


def _standing(report: TickReport) -> str:
    if report.leading:
        return "leading; launches no workers"
    return f"standing by: the leader is {report.leader or 'none'}"


def _runs(application: Application) -> RunView:
    """The runs of the Dagster instance of DAGSTER_HOME. If DAGSTER_HOME is not set, no runs are known."""
    home = os.environ.get("DAGSTER_HOME")
    if not home:
        return RunView(unknown="DAGSTER_HOME is not set, so Dagster's runs are unknown")
    refuse_missing_home(home)
    from dagster import DagsterInstance

    from kcl_dagster.orchestration.run_storage import run_view

    return run_view(DagsterInstance.get(), application)


def _standby() -> str:
    """The name of this machine's standby in the leader lock."""
    return f"{STANDBY}{socket.gethostname()}"


# --- emulator ---


def _emulator(arguments: list[str]) -> int:
    from kcl_dagster.emulator.__main__ import main as run_emulator

    return run_emulator(arguments, "kcl-dagster emulator")


if __name__ == "__main__":
    sys.exit(main())
