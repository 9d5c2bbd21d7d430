"""The operations as commands of the command line, and their output.

Exit code 0 means that the operation was done, or that nothing is wrong with the application. Exit code 1 means that
something is wrong with the application, or that another process changed some of its rows before the operation could
do so. The caller reports errors, including refusals.
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
from pathlib import Path
from typing import Annotated, Any, Final, Protocol, TypeVar, get_origin

import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from rich.console import Console

from kcl_dagster.application import KMS_KEY
from kcl_dagster.aws import call
from kcl_dagster.errors import ConfigurationError, KclError
from kcl_dagster.operations.applications import list_applications
from kcl_dagster.operations.cloudformation import ACCOUNT, REGION, to_yaml
from kcl_dagster.operations.operation import Answer, Operation, OperationContext, choices
from kcl_dagster.operations.printable import printable, show
from kcl_dagster.operations.rights import (
    DRIVER,
    LARGEST_POLICY,
    Catalogs,
    Component,
    Deployment,
    driver_policy,
    of_assumed_roles,
    policy,
    size,
)
from kcl_dagster.runtime import system

WELL: Final = 0
WRONG: Final = 1

Options = argparse.Namespace
AnOperation = TypeVar("AnOperation", bound=Operation)


class AddVerb(Protocol):
    """Adds a command. Its options name an application, unless the command concerns all applications."""

    def __call__(
        self, name: str, run: Callable[[Options], int], text: str, *, of_all: bool = False
    ) -> argparse.ArgumentParser: ...


class Names(argparse.Action):
    """An option whose value is a list of names. If a target (`module:attribute`) follows the names, argparse takes
    it for the last name. A last name with the form of a target is therefore stored in `trailing_target`, if it is
    not the only name. It is not stored in `target`, because argparse can overwrite `target` later."""

    def __call__(self, _parser: object, namespace: Options, values: Any, _option: str | None = None) -> None:
        names = list(values)
        if len(names) > 1 and _TARGET.fullmatch(names[-1]):
            namespace.trailing_target = names.pop()
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), *names])


_ACCOUNT: Final = re.compile(r"\d{12}", re.ASCII)
_GLUE_TABLE: Final = re.compile(r"[^.\s/]+\.[^.\s/]+")
_TARGET: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def add_operation(
    operation: type[Operation], verb: AddVerb, context: Callable[[Options], OperationContext]
) -> argparse.ArgumentParser:
    """Add the command of an operation, with an option for each of its settings."""
    added = verb(
        operation.name, lambda options: run_operation(operation, context(options), options), operation.title
    )
    for name, setting in operation.settings("terminal").items():
        _add_option(added, name, setting)
    added.add_argument("--json", action="store_true", help="print JSON")
    return added


def _add_option(parser: argparse.ArgumentParser, name: str, setting: FieldInfo) -> None:
    flag, text = f"--{name.replace('_', '-')}", setting.description
    if setting.annotation is bool:
        parser.add_argument(flag, action="store_true", help=text)
    elif get_origin(setting.annotation) is list:
        parser.add_argument(flag, nargs="+", action=Names, default=(), help=text)
    else:
        parser.add_argument(
            flag,
            type=reader(setting),
            choices=choices(setting) or None,
            required=setting.is_required(),
            default=None if setting.is_required() else setting.default,
            help=text,
        )


def reader(setting: FieldInfo) -> Callable[[str], Any]:
    """A function that reads the text of an option by the rules of the setting."""
    annotated: Any = Annotated[setting.annotation, setting]
    adapter: TypeAdapter[Any] = TypeAdapter(annotated)

    def read(text: str) -> Any:
        try:
            return adapter.validate_python(text)
        except ValidationError as error:
            said = error.errors(include_url=False)[0]["msg"]
            raise argparse.ArgumentTypeError(f"{said[0].lower()}{said[1:]}, and is {text}") from None

    return read


def chosen(operation: type[AnOperation], options: Options) -> AnOperation:
    return operation(**{name: getattr(options, name) for name in operation.settings("terminal")})


def run_operation(operation: type[Operation], context: OperationContext, options: Options) -> int:
    console = Console()
    if not options.json:
        context = replace(context, show=lambda line: console.print(line, soft_wrap=True))
    answer = chosen(operation, options).run(context)
    _print(answer, console, as_json=options.json)
    if answer.wrong and answer.is_well:
        sys.stderr.write(f"{printable(answer.wrong)}\n")
    return WELL if answer.is_well and not answer.wrong else WRONG


def _print(answer: Answer, console: Console, *, as_json: bool) -> None:
    if as_json:
        document = answer.document if answer.document is not None else answer.facts or None
        if document is not None:
            _tell(json.dumps(document, indent=2))
    elif answer.view is not None:
        show(answer.view, console)
    else:
        for line in answer.lines:
            _tell(line)


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """The files of the terminal's user. A text without a file name is printed to standard output."""

    def put(self, name: str | None, text: str, *, force: bool) -> str | None:
        if name is None:
            sys.stdout.write(text)
            return None
        file = Path(name)
        try:
            with file.open("w" if force or not _is_replaceable(file) else "x") as opened:
                opened.write(text)
        except FileExistsError:
            raise ConfigurationError(f"{file} exists: --force replaces it") from None
        except OSError as error:
            raise ConfigurationError(f"{file} cannot be written: {error.strerror}") from None
        return name

    def get(self, name: str) -> str:
        try:
            return Path(name).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{name} cannot be read: {error}") from None


@dataclass(frozen=True, slots=True)
class DeploymentVerbs:
    """The commands `rights`, `cloudformation` and `list`. The fields are functions that take their results from the
    options."""

    context: Callable[[Options], OperationContext]
    client: Callable[[Options, str], Any]
    roles: Callable[[Options], Mapping[str, str]]
    """The ARNs of assumed roles, by service."""

    exports: Callable[[Options], str | None]
    """The folder of exports in the project's settings."""

    lake_key: Callable[[Options], str | None]
    """The ARN of the lake's key in the project's settings."""

    is_bounded: Callable[[Options], bool]
    """Whether a schedule of bounded runs reads the project's streams."""

    catalogs: Callable[[Options], Catalogs]
    """The Iceberg tables of the project's sink."""

    def register(self, verb: AddVerb) -> None:
        rights = verb("rights", self._rights, "print the least IAM policy of a component, as JSON")
        rights.add_argument(
            "--component",
            required=True,
            choices=[*(one.value for one in Component), DRIVER],
            help=f"`{DRIVER}` is a Spark driver elsewhere: leader, worker and executor in one",
        )
        rights.add_argument("--account", help="number of the AWS account; default: the account of the credentials")
        stack = verb(
            "cloudformation",
            self._cloudformation,
            "print a CloudFormation template of the lease table, a role for each component, and alarms",
        )
        for one in (rights, stack):
            one.add_argument("--lake", action="append", help="s3://bucket/prefix of the data; default: the sink's")
            one.add_argument(
                "--glue-table", help="database.table of an Iceberg table in AWS Glue; default: the sink's"
            )
            one.add_argument("--exports", help="s3://bucket/prefix of exports; default: that of the definitions")
            one.add_argument(
                "--messages",
                help="s3://bucket through which remote Spark drivers report (Dagster Pipes)",
            )
            one.add_argument("--stream-key", help="ARN of the KMS key of the stream")
            one.add_argument("--table-key", help="ARN of the KMS key of the tables; default: the application's")
            one.add_argument("--lake-key", help="ARN of the KMS key of the data; default: the connection's")
            one.add_argument(
                "--list-applications",
                action="store_true",
                help="also allow `list`: to describe all tables of the region",
            )
        whole = verb(
            "list", self._list, "list all applications of the account and region, by their tables", of_all=True
        )
        whole.add_argument("--json", action="store_true", help="print JSON")

    def _rights(self, options: Options) -> int:
        context = self.context(options)
        dynamodb = context.client("dynamodb")
        account = options.account
        if account is None:
            try:
                account = str(call(context.client("sts"), "get_caller_identity")["Account"])
            except KclError as error:
                raise ConfigurationError(
                    f"the account is not known, because AWS was asked in vain: say --account NUMBER. {error}"
                ) from error
        elif not _ACCOUNT.fullmatch(account):
            raise ConfigurationError(f"--account {account} is not the number of an account, which has 12 digits")
        deployment = self._deployment(options, context, dynamodb.meta.region_name, account)
        is_driver = options.component == DRIVER
        made = driver_policy(deployment) if is_driver else policy(Component(options.component), deployment)
        _tell(json.dumps(made, indent=2))
        if is_driver or options.component == Component.WORKER:
            self._tell_signed(options)
        self._tell_roles(f"the {options.component}", made, deployment)
        if size(made) > LARGEST_POLICY:
            sys.stderr.write(
                f"IAM accepts managed policies of {LARGEST_POLICY} characters, and this one has {size(made)}: "
                "`kcl-dagster cloudformation` prints it as several policies\n"
            )
        return WELL

    def _cloudformation(self, options: Options) -> int:
        deployment = self._deployment(options, self.context(options), REGION, ACCOUNT)
        sys.stdout.write(to_yaml(deployment, f"kcl-dagster {shlex.join(options.given)}"))
        self._tell_signed(options)
        for component in Component:
            self._tell_roles(f"{component.value.capitalize()}Policy", policy(component, deployment), deployment)
        return WELL

    def _tell_signed(self, options: Options) -> None:
        """Print to standard error that the worker also needs rights on REST catalogs, and for which tables. These
        rights are not in its policy."""
        for table in self.catalogs(options).signed:
            sys.stderr.write(
                f"kcl-dagster: the worker also needs rights on the REST catalog of {table}, which are not in the "
                "policy: the page on catalogs and engines (docs/how-to/lakehouse.md) lists them\n"
            )

    def _tell_roles(self, whose: str, made: Mapping[str, Any], deployment: Deployment) -> None:
        """Print to standard error which statements of the policy have to be attached to an assumed role. Standard
        output gets only the policy or template."""
        for role, sids in of_assumed_roles(made, deployment).items():
            sys.stderr.write(
                f"kcl-dagster: the statements {', '.join(sids)} of {whose} are for the role {role}, which it "
                "assumes: attach them to that role\n"
            )

    def _deployment(self, options: Options, context: OperationContext, region: str, account: str) -> Deployment:
        for name in ("stream_key", "table_key", "lake_key"):
            key = getattr(options, name)
            if key is not None and not re.fullmatch(KMS_KEY, key):
                raise ConfigurationError(
                    f"--{name.replace('_', '-')} {key} is not the ARN of a key in KMS, such as "
                    "arn:aws:kms:eu-west-1:123456789012:key/..."
                )
        if options.glue_table is not None and not _GLUE_TABLE.fullmatch(options.glue_table):
            raise ConfigurationError(f"--glue-table {options.glue_table} is not of the form database.table")
        exports = options.exports or self.exports(options)
        return Deployment(
            context.application,
            region,
            account,
            lakes=tuple(options.lake) if options.lake else _lakes(context),
            glue_tables=(options.glue_table,) if options.glue_table else self.catalogs(options).in_glue,
            stream_key=options.stream_key,
            table_key=options.table_key or context.application.tables.kms_key,
            lake_key=options.lake_key or self.lake_key(options),
            exports=exports if exports is not None and exports.startswith(("s3://", "s3a://", "s3n://")) else None,
            messages=options.messages,
            roles=self.roles(options),
            lists_applications=options.list_applications,
            is_bounded=self.is_bounded(options),
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


def _lakes(context: OperationContext) -> tuple[str, ...]:
    """The folders on S3 to which the workers write. Raises ConfigurationError if a folder is not known here, for
    example because only the catalog of an Iceberg table knows it."""
    roots = []
    for name, open_it in context.places().stores.items():
        unknown = f"the place of the {name} is not known: say --lake s3://bucket/prefix"
        try:
            store = open_it()
        except KclError as error:
            raise ConfigurationError(f"{unknown}. {error}") from error
        if store is None:
            raise ConfigurationError(unknown)
        roots.append(store.root)
    return tuple(dict.fromkeys(root for root in roots if root.startswith("s3://")))


def _is_replaceable(file: Path) -> bool:
    """Whether the path is a file or does not exist. Other paths, such as devices and pipes, are not replaced."""
    return file.is_file() or not file.exists()


def whoami() -> str:
    """The name of the user and the host, for the audit."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without a user database
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def instance_settings(home: str | None) -> Mapping[str, Any] | None:
    """The settings in dagster.yaml; None if `home` is empty. If there is no such file, Dagster's defaults apply.

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
    """Raise ConfigurationError if DAGSTER_HOME is not a folder. Dagster's own error would be shown as a
    traceback."""
    if not Path(home).is_dir():
        raise ConfigurationError(f"DAGSTER_HOME {home} is not a folder: correct it, or unset it")


def _tell(text: str) -> None:
    sys.stdout.write(f"{printable(text)}\n")
