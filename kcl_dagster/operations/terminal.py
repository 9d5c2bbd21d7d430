"""The operations as verbs of the command line: their names, options and output.

Exit codes: 0 means done, or that the application is well. 1 means that something is wrong with the application, or
that another process was faster for a part of it. The caller shows errors, refusals among them.
"""

import argparse
import getpass
import json
import os
import re
import shlex
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol, get_args

import yaml
from rich.console import Console
from rich.text import Text

from kcl_dagster.application import Application, Retrieval
from kcl_dagster.aws import Client, call
from kcl_dagster.errors import ConfigurationError, KclError, TableNotFound
from kcl_dagster.model.counting import counted
from kcl_dagster.operations.applications import list_applications
from kcl_dagster.operations.backup import ImportReport, export_leases, import_leases
from kcl_dagster.operations.cloudformation import ACCOUNT, REGION, to_yaml
from kcl_dagster.operations.consumption import measure
from kcl_dagster.operations.cost import (
    HOUR_PRICE,
    PUT_PRICE,
    READ_PRICE,
    RUN_SECONDS,
    WRITE_PRICE,
    Prices,
    StoredIn,
    Storing,
    estimate,
    estimate_catch_up,
)
from kcl_dagster.operations.deregistration import Deregistration, deregister
from kcl_dagster.operations.desk import Desk
from kcl_dagster.operations.doctor import Diagnosis, DoctorFinding, DoctorVerdict, diagnose, examine
from kcl_dagster.operations.doctor.diagnosis import WATCH_SECONDS, Patient
from kcl_dagster.operations.forgetting import Forgetting, forget
from kcl_dagster.operations.pausing import PauseReport, drain, pause, resume
from kcl_dagster.operations.peek import peek
from kcl_dagster.operations.printable import printable
from kcl_dagster.operations.reset import ResetReport, reset
from kcl_dagster.operations.reset_target import ResetTarget
from kcl_dagster.operations.rights import Component, Deployment, policy
from kcl_dagster.operations.status import read_status, refuse_other_streams
from kcl_dagster.operations.takeover import take_over_2x
from kcl_dagster.runtime import system
from kcl_dagster.spark.storage import Store

WELL: Final = 0
WRONG: Final = 1
NOTHING_CHANGED: Final = "nothing was changed"
_STYLES: Final = {
    DoctorVerdict.OK: "green",
    DoctorVerdict.WARN: "yellow",
    DoctorVerdict.FAIL: "bold red",
    DoctorVerdict.NOT_LOOKED: "dim",
}

Options = argparse.Namespace


class AddVerb(Protocol):
    """Adds a verb that takes the options which name an application, unless it is about all of them."""

    def __call__(
        self, name: str, run: Callable[[Options], int], text: str, *, of_all: bool = False
    ) -> argparse.ArgumentParser: ...


class Names(argparse.Action):
    """Several names after an option. A target that follows them is taken for the target: neither shards, leases nor
    workers look like `module:attribute`. It is put into `trailing_target`, as argparse may write `target` later."""

    def __call__(self, _parser: object, namespace: Options, values: Any, _option: str | None = None) -> None:
        names = list(values)
        if len(names) > 1 and _TARGET.fullmatch(names[-1]):
            namespace.trailing_target = names.pop()
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), *names])


_ACCOUNT: Final = re.compile(r"\d{12}", re.ASCII)
_KEY: Final = re.compile(r"arn:aws[\w-]*:kms:[\w-]+:\d{12}:key/[\w-]+", re.ASCII)
_GLUE_TABLE: Final = re.compile(r"[^.\s/]+\.[^.\s/]+")
_TARGET: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Verbs:
    """Runs the verbs. `application` and `client` turn options into what they name."""

    application: Callable[[Options], Application]
    client: Callable[[Options, str], Client]
    stores: Callable[[Options], tuple[Mapping[str, Callable[[], Store]], str]] = lambda _: ({}, "")
    """What the application writes to, and why its sink is not among it."""

    roles: Callable[[Options], Mapping[str, str]] = lambda _: {}
    """ARNs of the roles that are assumed, by service."""

    exports: Callable[[Options], str | None] = lambda _: None
    """The folder of exports that the project names."""

    storing: Callable[[Options], Storing | None] = lambda _: None
    """How the consumer's sink stores; None where no consumer is named."""

    def register(self, verb: AddVerb) -> None:
        doctor = verb("doctor", self._doctor, "whether all that the application depends on is as it should be")
        doctor.add_argument("--watch", type=float, default=WATCH_SECONDS, help="seconds to watch the leader for")
        doctor.add_argument(
            "--complete-within",
            type=float,
            metavar="SECONDS",
            help="of an application that bounded runs read: well while complete through a moment within this time",
        )
        doctor.add_argument("--dagster-home", help="where dagster.yaml is; left out: DAGSTER_HOME")
        rights = verb("rights", self._rights, "the least IAM policy of a component, as JSON")
        rights.add_argument("--component", required=True, choices=[one.value for one in Component])
        rights.add_argument("--account", help="number of the AWS account; left out: of the credentials")
        stack = verb(
            "cloudformation",
            self._cloudformation,
            "lease table, a role for each component, and alarms, as a CloudFormation template",
        )
        for one in (rights, stack):
            one.add_argument("--lake", action="append", help="s3://bucket/prefix; left out: of the sink")
            one.add_argument("--glue-table", help="database.table of an Iceberg table in AWS Glue")
            one.add_argument("--exports", help="s3://bucket/prefix of exports; left out: that of the definitions")
            one.add_argument("--stream-key", help="ARN of the KMS key of the stream")
            one.add_argument("--table-key", help="ARN of the KMS key of the tables")
            one.add_argument("--lake-key", help="ARN of the KMS key of the lake")
            one.add_argument(
                "--list-applications", action="store_true", help="with what `list` needs: all tables of the region"
            )
        whole = verb("list", self._list, "all applications of the account and region, by their tables", of_all=True)
        stop = verb("pause", self._pause, "stop the application, or some shards or workers, until resumed")
        go = verb("resume", self._resume, "let it go on")
        for one in (stop, go):
            one.add_argument("--shards", nargs="+", action=Names, default=(), help="only these")
            workers_help = "only these, or the slots of that name"
            one.add_argument("--workers", nargs="+", action=Names, default=(), help=workers_help)
        away = verb("drain", self._drain, "ask a worker to hand its leases over and to end")
        away.add_argument("--worker", required=True, help="its name, or its slot")
        away.add_argument("--undo", action="store_true", help="not any more")
        back = verb("reset", self._reset, "put leases to another place in the stream")
        back.add_argument("--to", required=True, help="trim_horizon, latest, 2027-01-31T12:00:00Z, or a record")
        back.add_argument("--shards", nargs="+", action=Names, default=(), help="only these")
        back.add_argument("--of-stream", action="append", default=[], help="only this one of several streams")
        back.add_argument(
            "--wait-for-dead", action="store_true", help="watch leases, and take those that are not renewed"
        )
        out = verb("export", self._export, "leases as JSON lines")
        out.add_argument("--file", type=Path, help="left out: standard output")
        out.add_argument("--force", action="store_true", help="replace the file if there is one")
        into = verb("import", self._import, "write exported leases, unowned")
        into.add_argument("--file", type=Path, required=True)
        into.add_argument("--force", action="store_true", help="replace leases that differ, if they have no owner")
        off = verb("deregister", self._deregister, "remove the application's fan-out consumer from its streams")
        off.add_argument("--consumer", help="its name, if it is not the application's")
        off.add_argument("--of-stream", action="append", default=[], help="only from this one of several streams")
        off.add_argument("--force", action="store_true", help="although a worker may be reading under it")
        forgotten = verb("forget", self._forget, "delete the leases of former streams")
        forgotten.add_argument(
            "--file",
            type=Path,
            help="where to export what is deleted; left out: a name with the time, in this folder",
        )
        forgotten.add_argument(
            "--former", action="append", default=[], help="only of this former stream, account:name:epoch"
        )
        cost = verb("cost", self._cost, "what the tables, S3 and workers cost a month, estimated or measured")
        cost.add_argument("--shards", type=_positive, help="left out: as many as there are")
        cost.add_argument("--workers", type=_positive, help="left out: as many as there are")
        cost.add_argument("--measured", type=float, metavar="HOURS", help="of the tables alone, by CloudWatch")
        cost.add_argument("--busy", type=float, default=1.0, help="part of the time in which shards have records")
        cost.add_argument(
            "--catch-up", type=float, metavar="MINUTES", help="of bounded runs so far apart, and not of a fleet"
        )
        cost.add_argument(
            "--run-seconds", type=float, default=RUN_SECONDS, help="with --catch-up, how long a run takes"
        )
        cost.add_argument(
            "--sink",
            choices=get_args(StoredIn),
            help="on S3 (other: not on S3); left out: that of the consumer that is named, else a folder",
        )
        cost.add_argument(
            "--commit",
            choices=("chains", "leases"),
            help="of the sink; left out: that of the consumer that is named, else chains",
        )
        cost.add_argument(
            "--commit-seconds",
            type=_positive,
            help="of a table in chains; left out: those of the consumer that is named, else 30",
        )
        cost.add_argument("--partition-values", type=_positive, default=1, help="how many a batch has")
        cost.add_argument("--put-price", type=float, default=PUT_PRICE, help="dollars for a million puts to S3")
        cost.add_argument("--hour-price", type=float, default=HOUR_PRICE, help="dollars for an hour of a worker")
        cost.add_argument("--write-price", type=float, default=WRITE_PRICE, help="dollars for a million units")
        cost.add_argument("--read-price", type=float, default=READ_PRICE, help="dollars for a million units")
        look = verb("peek", self._peek, "the last records of a shard, de-aggregated, as JSON lines")
        look.add_argument("--shard", required=True)
        look.add_argument("--of-stream", help="of several streams this one")
        look.add_argument("--limit", type=int, default=10)
        look.add_argument("--first", action="store_true", help="the first records instead of the last")
        over = verb("take-over-2x", self._take_over, "go on with the leases of KCL 1.x or 2.x, for good")
        over.add_argument("--workers-are-stopped", action="store_true", help="you have stopped all of its workers")
        for one in (stop, go, away, back, into, off, forgotten, over):
            one.add_argument("--dry-run", action="store_true", help="say what would be done, and do not do it")
        for one in (doctor, whole, back, into, off, forgotten, cost):
            one.add_argument("--json", action="store_true", help="for machines")

    def _desk(self, options: Options) -> Desk:
        application, dynamodb = self.application(options), self.client(options, "dynamodb")
        if not options.target:
            refuse_other_streams(application, dynamodb, system())
        return Desk.open(application, dynamodb, self.client(options, "kinesis"), system(), whoami())

    # --- verbs

    def _doctor(self, options: Options) -> int:
        stores, why_no_sink = self.stores(options)
        patient = Patient(
            self.application(options),
            self.client(options, "dynamodb"),
            self.client(options, "kinesis"),
            system(),
            os.environ,
            instance_settings(options.dagster_home or os.environ.get("DAGSTER_HOME")),
            watch_seconds=options.watch,
            cloudwatch=lambda: self.client(options, "cloudwatch"),
            stores=stores,
            why_no_sink=why_no_sink,
            complete_within=options.complete_within,
        )
        if options.json:
            diagnosis = diagnose(patient)
            _tell(json.dumps(diagnosis.to_document(), indent=2))
            return WELL if diagnosis.is_well else WRONG
        console, findings = Console(), []
        for finding in examine(patient):
            findings.append(finding)
            console.print(_line(finding), soft_wrap=True)  # now: the next one may take seconds
        return WELL if Diagnosis(findings).is_well else WRONG

    def _rights(self, options: Options) -> int:
        application = self.application(options)
        dynamodb = self.client(options, "dynamodb")
        account = options.account
        if account is None:
            try:
                account = str(call(self.client(options, "sts"), "get_caller_identity")["Account"])
            except KclError as error:
                raise ConfigurationError(
                    f"the account is not known, because AWS was asked in vain: say --account NUMBER. {error}"
                ) from error
        elif not _ACCOUNT.fullmatch(account):
            raise ConfigurationError(f"--account {account} is not the number of an account, which has 12 digits")
        deployment = self._deployment(options, application, dynamodb.meta.region_name, account)
        _tell(json.dumps(policy(Component(options.component), deployment), indent=2))
        return WELL

    def _cloudformation(self, options: Options) -> int:
        deployment = self._deployment(options, self.application(options), REGION, ACCOUNT)
        sys.stdout.write(to_yaml(deployment, f"kcl-dagster {shlex.join(options.given)}"))
        return WELL

    def _deployment(self, options: Options, application: Application, region: str, account: str) -> Deployment:
        for name in ("stream_key", "table_key", "lake_key"):
            key = getattr(options, name)
            if key is not None and not _KEY.fullmatch(key):
                raise ConfigurationError(
                    f"--{name.replace('_', '-')} {key} is not the ARN of a key in KMS, such as "
                    "arn:aws:kms:eu-west-1:123456789012:key/..."
                )
        if options.glue_table is not None and not _GLUE_TABLE.fullmatch(options.glue_table):
            raise ConfigurationError(f"--glue-table {options.glue_table} is not of the form database.table")
        exports = options.exports or self.exports(options)
        return Deployment(
            application,
            region,
            account,
            lakes=tuple(options.lake) if options.lake else self._lakes(options),
            glue_table=options.glue_table,
            stream_key=options.stream_key,
            table_key=options.table_key,
            lake_key=options.lake_key,
            exports=exports if exports is not None and exports.startswith(("s3://", "s3a://", "s3n://")) else None,
            roles=self.roles(options),
            lists_applications=options.list_applications,
        )

    def _list(self, options: Options) -> int:
        applications = list_applications(self.client(options, "dynamodb"), system())
        if options.json:
            _tell(json.dumps(applications.to_document(), indent=2))
            return WELL
        for one in applications.found:
            _tell(str(one))
        if not applications.found:
            _tell("no table looks like a lease table: is this the region?")
        if applications.denied:
            _tell(f"not looked at, for want of rights: {', '.join(applications.denied)}")
        return WELL

    def _lakes(self, options: Options) -> tuple[str, ...]:
        stores, _ = self.stores(options)
        roots = [open_it().root for open_it in stores.values()]
        return tuple(dict.fromkeys(root for root in roots if root.startswith("s3://")))

    def _pause(self, options: Options) -> int:
        return _tell_pauses(
            pause(self._desk(options), options.shards, workers=options.workers, dry=options.dry_run)
        )

    def _resume(self, options: Options) -> int:
        return _tell_pauses(
            resume(self._desk(options), options.shards, workers=options.workers, dry=options.dry_run)
        )

    def _drain(self, options: Options) -> int:
        asked = drain(self._desk(options), options.worker, wanted=not options.undo, dry=options.dry_run)
        asks = "would be asked" if options.dry_run else "is asked"
        _tell("\n".join(f"{worker} {asks} {'to go on' if options.undo else 'to finish'}" for worker in asked))
        if options.dry_run:
            _tell(NOTHING_CHANGED)
        return WELL if asked else WRONG

    def _reset(self, options: Options) -> int:
        runtime = system()
        report = reset(
            self._desk(options),
            ResetTarget.parse(options.to, runtime.clock.now()),
            streams=options.of_stream,
            shards=options.shards,
            wait_for_dead=options.wait_for_dead,
            dry=options.dry_run,
        )
        _tell_report(options, report)
        return WRONG if report.overtaken else WELL

    def _export(self, options: Options) -> int:
        lines = list(export_leases(self._desk(options)))
        text = "".join(f"{line}\n" for line in lines)
        if options.file is None:
            sys.stdout.write(text)
        else:
            _write(options.file, text, force=options.force)
            _tell(counted(len(lines), "lease"))
        return WELL

    def _import(self, options: Options) -> int:
        try:
            lines = options.file.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{options.file} cannot be read: {error}") from None
        report = import_leases(self._desk(options), lines, force=options.force, dry=options.dry_run)
        _tell_report(options, report)
        return WRONG if report.overtaken else WELL

    def _deregister(self, options: Options) -> int:
        desk = self._desk(options)
        if not options.target:  # if an application is only named, it is not known how it reads
            batch = desk.application.batch.model_copy(update={"retrieval": Retrieval.FANOUT})
            desk = replace(desk, application=desk.application.model_copy(update={"batch": batch}))
        report = deregister(
            desk,
            consumer=options.consumer,
            streams=options.of_stream,
            force=options.force,
            dry=options.dry_run,
        )
        _tell_report(options, report)
        return WELL

    def _forget(self, options: Options) -> int:
        desk = self._desk(options)
        moment = datetime.fromtimestamp(desk.runtime.clock.now(), UTC)
        file = options.file or Path(f"forgotten-{desk.application.name}-{moment:%Y%m%dT%H%M%SZ}.jsonl")

        def keep(text: str) -> str:
            _write(file, text, force=False)
            return str(file)

        report = forget(desk, options.former, keep=keep, dry=options.dry_run)
        _tell_report(options, report)
        return WRONG if report.overtaken else WELL

    def _cost(self, options: Options) -> int:
        prices = Prices(options.write_price, options.read_price, options.hour_price, options.put_price)
        if options.measured is not None:
            return self._measured(options, prices)
        storing = self._storing(options)
        application, shards, workers = self.application(options), options.shards, options.workers
        if options.catch_up is not None:
            if min(options.catch_up, options.run_seconds) <= 0:
                raise ConfigurationError("--catch-up and --run-seconds are more than 0")
            workers = 1
        if shards is None or workers is None:
            try:
                status = read_status(application, self.client(options, "dynamodb"), system())
            except TableNotFound as error:
                raise TableNotFound(f"{error} For an estimate before that, add --shards N --workers N") from error
            shards = len(status.open_leases) if shards is None else shards
            workers = len(status.workers) if workers is None else workers
        if options.catch_up is None:
            cost = estimate(
                application, shards=shards, workers=workers, busy=options.busy, prices=prices, storing=storing
            )
            size = f"{counted(shards, 'shard')} and {counted(workers, 'worker')}"
        else:
            every = options.catch_up * 60
            cost = estimate_catch_up(
                application,
                shards=shards,
                every=every,
                run_seconds=options.run_seconds,
                prices=prices,
                storing=storing,
            )
            size = f"{counted(shards, 'shard')} and a bounded run every {options.catch_up:g} minutes"
        if options.json:
            _tell(json.dumps(cost.to_document(), indent=2))
        else:
            _tell(f"assumed: {cost.assumptions}")
            for line in cost.lines:
                used = f"{line.writes:.2f} write and {line.reads:.2f} read units"
                if line.puts:
                    used = f"{line.puts:.2f} puts, copies and listings"
                _tell(f"{line.dollars(cost.prices):10.2f} $  {line.purpose} ({used} a second)")
            _tell(f"{cost.dollars:10.2f} $  a month for {size}, on demand")
            _tell(f"{cost.files_per_hour:10.0f}    data files an hour, before a compaction")
            _tell(f"{cost.machine_dollars:10.2f} $  a month for {cost.machine_hours:.0f} hours of workers")
        return WELL

    def _storing(self, options: Options) -> Storing:
        known = self.storing(options) or Storing(chained=True)
        return Storing(
            options.sink or known.target,
            known.chained if options.commit is None else options.commit == "chains",
            options.commit_seconds or known.commit_seconds,
            options.partition_values,
        )

    def _measured(self, options: Options, prices: Prices) -> int:
        if options.measured <= 0:
            raise ConfigurationError(f"--measured {options.measured:g}: say over how many hours")
        cloudwatch = self.client(options, "cloudwatch")
        used = measure(cloudwatch, self._desk(options).layout, system(), hours=options.measured, prices=prices)
        if options.json:
            _tell(json.dumps(used.to_document(), indent=2))
        elif used.is_empty:
            _tell("CloudWatch has counted nothing for these tables")
        else:
            for kind, units in (("write", used.writes), ("read", used.reads)):
                for name, number in units.items():
                    _tell(f"{number / used.seconds:10.2f} {kind} units a second  {name}")
            _tell(f"{used.dollars:10.2f} $  a month like the last {options.measured:g} hours, on demand")
        return WRONG if used.is_empty else WELL

    def _peek(self, options: Options) -> int:
        application = self.application(options)
        stream = options.of_stream or application.streams[0].name
        if stream not in {one.name for one in application.streams}:
            raise ConfigurationError(f"application {application.name} does not read {stream}")
        found = peek(
            self.client(options, "kinesis"),
            stream,
            options.shard,
            system(),
            limit=options.limit,
            first=options.first,
        )
        for record in found:
            _tell(json.dumps(record.to_document()))
        return WELL

    def _take_over(self, options: Options) -> int:
        application = self.application(options)
        take_over_2x(
            application,
            self.client(options, "dynamodb"),
            system(),
            whoami(),
            workers_are_stopped=options.workers_are_stopped,
            dry=options.dry_run,
        )
        done = "can be" if options.dry_run else "is"
        _tell(f"{application.name} {done} taken over; start its leader")
        return WELL


def _line(finding: DoctorFinding) -> Text:
    said = printable(f"{finding.verdict.value:<5} {finding.check}: {finding.says}")
    text = Text(said, style=_STYLES[finding.verdict])
    return text if not finding.do else text.append(f"\n      {printable(finding.do)}")


def _write(file: Path, text: str, *, force: bool) -> None:
    """Raises ConfigurationError if the file exists and `force` is not set, or if it cannot be written."""
    try:
        with file.open("w" if force or not _is_replaceable(file) else "x") as opened:
            opened.write(text)
    except FileExistsError:
        raise ConfigurationError(f"{file} exists: --force replaces it") from None
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error.strerror}") from None


def _is_replaceable(file: Path) -> bool:
    """Not a device or a pipe."""
    return file.is_file() or not file.exists()


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def whoami() -> str:
    """Who is at the keyboard, for the audit."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without a user database
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def instance_settings(home: str | None) -> Mapping[str, Any] | None:
    """What dagster.yaml says; None without a home. An instance without the file has Dagster's defaults.

    Raises ConfigurationError for a home that does not exist, or a file that cannot be read.
    """
    if not home:
        return None
    refuse_missing_home(home)
    path = Path(home) / "dagster.yaml"
    try:
        settings = yaml.safe_load(path.read_text()) if path.exists() else {}
    except (OSError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None
    return settings or {}


def refuse_missing_home(home: str) -> None:
    """Raises ConfigurationError for a DAGSTER_HOME that is not there. Dagster's own error is a traceback."""
    if not Path(home).is_dir():
        raise ConfigurationError(f"DAGSTER_HOME {home} is not a folder: correct it, or unset it")


def _tell_pauses(report: PauseReport) -> int:
    for line in report.lines():
        _tell(line)
    if report.dry:
        _tell(NOTHING_CHANGED)
    return WELL


def _tell_report(options: Options, report: ResetReport | ImportReport | Deregistration | Forgetting) -> None:
    if options.json:
        _tell(json.dumps(report.to_document(), indent=2))
        return
    for line in report.lines():
        _tell(line)
    if report.dry:
        _tell(NOTHING_CHANGED)


def _tell(text: str) -> None:
    sys.stdout.write(f"{printable(text)}\n")
