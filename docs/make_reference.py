"""Writes docs/reference from the code: `python -m docs.make_reference`. A test fails if a page is out of date."""

import argparse
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, ForwardRef, get_args, get_origin

import yaml
from pydantic import BaseModel

import kcl_dagster as kcl
from kcl_dagster import cli, decoding, errors, testing
from kcl_dagster.emulator.__main__ import parser as emulator_parser
from kcl_dagster.operations.all_operations import OPERATIONS
from kcl_dagster.operations.operation import Operation
from kcl_dagster.operations.rights import RIGHTS, Component, Deployment, policy
from kcl_dagster.orchestration import asset_checks, translator
from kcl_dagster.orchestration.admin_job import filled_in
from kcl_dagster.orchestration.component_models import (
    BatchModel,
    ConnectionModel,
    FailureModel,
    PartitionsModel,
    SinkModel,
    TelemetryModel,
)
from kcl_dagster.orchestration.docstrings import field_docstrings
from kcl_dagster.spark import schema

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs/reference"
MADE = "<!-- Made by `python -m docs.make_reference` from the code: do not edit. -->\n"

SETTINGS = (
    kcl.Application,
    kcl.StreamSettings,
    kcl.StartAt,
    kcl.FleetSettings,
    kcl.Timings,
    kcl.BatchSettings,
    kcl.FailurePolicy,
    kcl.PolicySettings,
    kcl.TableSettings,
    kcl.TelemetrySettings,
    kcl.KclResource,
    kcl.KclSparkResource,
)
COMPONENT_PARTS = {
    "sink": SinkModel,
    "partitions": PartitionsModel,
    "batch": BatchModel,
    "failure": FailureModel,
    "telemetry": TelemetryModel,
    "connection": ConnectionModel,
}
DECODERS = (
    "with_json",
    "with_decoded",
    "decode_json",
    "decode_table",
    "decode_column",
    "avro",
    "registered_avro",
    "ConfluentRegistry",
    "GlueRegistry",
    "protobuf",
    "split_lines",
    "split_log_events",
)


def pages() -> Mapping[str, str]:
    """The texts of the pages, by file name."""
    return {
        "api.md": _api(),
        "rights.md": _rights(),
        "settings.md": _settings(),
        "cli.md": _cli(),
        "records.md": _records(),
        "checks.md": _checks(),
        "errors.md": _errors(),
    }


# An application that needs all rights.
DEPLOYMENT = Deployment(
    kcl.Application(
        name="orders-to-lake",
        streams=("orders",),
        batch=kcl.BatchSettings(retrieval="fanout"),
        tables=kcl.TableSettings(tags={"team": "web"}, point_in_time_recovery=True),
        telemetry=kcl.TelemetrySettings(cloudwatch="SUMMARY"),
    ),
    "eu-west-1",
    "123456789012",
    lakes=("s3://lake/orders",),
    glue_tables=("lake.orders",),
    stream_key="arn:aws:kms:eu-west-1:123456789012:key/stream",
    table_key="arn:aws:kms:eu-west-1:123456789012:key/tables",
    lake_key="arn:aws:kms:eu-west-1:123456789012:key/lake",
    exports="s3://ops/leases",
    messages="s3://messages",
    roles={
        **dict.fromkeys(("kinesis", "dynamodb", "cloudwatch"), "arn:aws:iam::123456789012:role/reader"),
        "s3": "arn:aws:iam::123456789012:role/writer",
    },
)


def _rights() -> str:
    rows = (
        (f"`{grant.action}`", grant.target, ", ".join(one for one in Component if one in grant.to), grant.when)
        for grant in RIGHTS
    )
    policies = "\n\n".join(
        f"## {_capital(component)}\n\n{_fenced(json.dumps(policy(component, DEPLOYMENT), indent=2), 'json')}"
        for component in Component
    )
    intro = (
        "The AWS rights of each component. `kcl-dagster rights` prints the policies of an application; below are "
        "those of one that needs all of them. See [production](../production.md#rights)."
    )
    unseen = sorted({f"`{grant.action}` on the {grant.target}" for grant in RIGHTS if grant.checked_by})
    proof = (
        "A test compares this table with the requests that arrive at the embedded AWS while every component works. "
        "AWS checks some rights beside the one of a request's name. pyiceberg sends its own requests to AWS Glue, "
        f"and Dagster Pipes to S3. So no such request shows these: {', '.join(unseen)}. They follow the "
        "documentation of AWS, pyiceberg and Dagster."
    )
    table = _table(("action", "on", "components", "needed with"), rows)
    return _joined(["# Rights", MADE, intro, table, proof, policies])


def topics() -> Mapping[str, tuple[str, ...]]:
    """The public names by the topics under which `kcl_dagster/__init__.py` lists them."""
    source = inspect.getsource(kcl)
    listed = source[source.index("__all__ = [") :].splitlines()[1:]
    found: dict[str, list[str]] = {}
    for line in map(str.strip, listed):
        if line.startswith("]"):
            break
        if line.startswith("# "):
            found[line[2:]] = []
        else:
            found[list(found)[-1]].append(line.strip('",'))
    return {topic: tuple(names) for topic, names in found.items()}


# --- API


def _api() -> str:
    parts = ["# The Python API", MADE, "Attributes of `kcl_dagster`: `import kcl_dagster as kcl`."]
    for topic, names in topics().items():
        parts.append(f"## {topic}")
        for name in names:
            parts += _described(name, getattr(kcl, name), "###")
    parts.append("## What a payload says")
    parts.append("Imported from `kcl_dagster.decoding`.")
    for name in DECODERS:
        parts += _described(name, getattr(decoding, name), "###")
    parts.append("## Tests of a consumer")
    parts.append("Imported from `kcl_dagster.testing`. [Testing](../how-to/testing.md) has examples.")
    for name in testing.__all__:
        parts += map(_without_examples, _described(name, getattr(testing, name), "###"))
    return _joined(parts)


def _described(name: str, thing: Any, level: str) -> Iterator[str]:
    yield f"{level} {name}"
    if thing in SETTINGS:
        yield f"{_first_paragraph(thing)} Fields: [settings](settings.md#{name.lower()})."
        yield from _examples(thing)
        return
    if inspect.isclass(thing) and issubclass(thing, str):
        members = {member.name: member.value for member in thing}  # type: ignore[attr-defined]
        yield f"{_first_paragraph(thing)} " + ", ".join(f"`{value}`" for value in members.values()) + "."
        return
    if not inspect.isclass(thing):
        yield _fenced(f"{name}{_signature(thing)}", "text")
    yield _markdown(inspect.getdoc(thing) or "")
    if is_dataclass(thing) and inspect.isclass(thing):
        meanings = attribute_docs(thing)
        for field in fields(thing):
            if not field.name.startswith("_"):
                yield f"- `{field.name}`{_dash(meanings.get(field.name))}"
    if inspect.isclass(thing):
        for member, value in vars(thing).items():
            if member.startswith("_") or not (inspect.isfunction(value) or isinstance(value, property)):
                continue
            text = inspect.getdoc(value)
            if text:
                shown = member if isinstance(value, property) else f"{member}(…)"
                yield f"- `{shown}`{_dash(_one_line(text))}"


def _signature(function: Any) -> str:
    signature = inspect.signature(function)
    lines = []
    keyword_only = False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            if not any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values()):
                lines.append("*,")
        lines.append(f"{_parameter(parameter)},")
    if not lines:
        return "()"
    return "(\n" + "".join(f"    {line}\n" for line in lines) + ")"


def _parameter(parameter: inspect.Parameter) -> str:
    star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
    kind = "" if parameter.annotation is parameter.empty else f": {_annotation(parameter.annotation)}"
    default = "" if parameter.default is parameter.empty else f" = {_default(parameter.default)}"
    return f"{star}{parameter.name}{kind}{default}"


def _annotation(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = text.replace("~Records", "DataFrame | Table")  # the same type as what is returned
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text)


def _without_metadata(annotation: Any) -> Any:
    """The type in an `Annotated`, as it is written there."""
    if get_origin(annotation) is not Annotated:
        return annotation
    inner = get_args(annotation)[0]
    return inner.__forward_arg__ if isinstance(inner, ForwardRef) else inner


def _default(value: Any) -> str:
    return str(value) if hasattr(value, "name") and hasattr(value, "value") else repr(value)


def _examples(thing: Any) -> Iterator[str]:
    text = _markdown(inspect.getdoc(thing) or "")
    yield from re.findall(r"^```\w+\n.*?^```", text, re.MULTILINE | re.DOTALL)


def _without_examples(text: str) -> str:
    return re.sub(r"\n*^```python\n.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def _markdown(text: str) -> str:
    """A docstring as Markdown. Its sections become headings, its code blocks fences, and its arguments a list."""
    out: list[str] = []
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.strip() in {"Args:", "Example:", "Attributes:", "Raises:"}:
            body, at = _indented(lines, at + 1)
            while out and not out[-1].strip():
                out.pop()
            if line.strip() == "Example:":
                out += ["", _code(body)]
            else:
                out += ["", *_arguments(body)]
            continue
        if line.startswith("    ") and (not out or not out[-1].strip()):
            body, at = _indented(lines, at)
            out += [_fenced(textwrap.dedent("\n".join(body)).strip(), _language(body))]
            continue
        out.append(line)
        at += 1
    return "\n".join(out).strip()


def _indented(lines: list[str], start: int) -> tuple[list[str], int]:
    end = start
    while end < len(lines) and (not lines[end].strip() or lines[end].startswith("    ")):
        end += 1
    while end > start and not lines[end - 1].strip():
        end -= 1
    return textwrap.dedent("\n".join(lines[start:end])).splitlines(), end


def _code(body: list[str]) -> str:
    language = "python"
    if body and (named := re.match(r"\.\. code-block:: (\w+)", body[0])):
        language, body = named[1], body[1:]
    return _fenced(textwrap.dedent("\n".join(body)).strip(), language)


def _language(body: list[str]) -> str:
    return "text" if any("──" in line for line in body) else "python"


def _arguments(body: list[str]) -> Iterator[str]:
    entries: list[str] = []
    for line in body:
        if line.startswith("    "):
            entries[-1] += f" {line.strip()}"
        elif line.strip():
            entries.append(line.strip())
    for entry in entries:
        name, _, meaning = entry.partition(": ")
        yield f"- `{name}`: {meaning}"


# --- settings


def attribute_docs(kind: type) -> Mapping[str, str]:
    """The docstrings below the fields of a class and its base classes, each as one line."""
    return {name: _one_line(text) for name, text in field_docstrings(kind).items()}


def field_rows(model: type[BaseModel]) -> Iterator[tuple[str, str, str, str]]:
    """The name, type, default and meaning of each field."""
    meanings = attribute_docs(model)
    described = model.model_json_schema()
    for name, field in model.model_fields.items():
        meaning = meanings.get(name) or field.description or ""
        yield name, _kind(described["properties"][name], described.get("$defs", {})), _field_default(field), meaning


def _field_default(field: Any) -> str:
    value = field.get_default(call_default_factory=True)
    if field.is_required():
        return "required"
    if isinstance(value, BaseModel):
        return f"[its own](#{type(value).__name__.lower()})"
    return _plain_default(value)


def _plain_default(value: Any) -> str:
    if value is None or value in ({}, (), []):
        return ""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, str):
        return f"`{getattr(value, 'value', value)}`"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _kind(field: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    if "anyOf" in field:
        kinds = [_kind(one, known) for one in field["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "allOf" in field:
        return _kind(field["allOf"][0], known)
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        target = known[name]
        return _choices(target["enum"]) if "enum" in target else f"[{name}](#{name.lower()})"
    if "enum" in field:
        return _choices(field["enum"])
    if field.get("type") == "array":
        return f"list of {_kind(field.get('items', {}), known)}"
    if field.get("type") == "object":
        return "mapping"
    name = {"string": "text", "integer": "whole number", "number": "number", "boolean": "yes or no"}.get(
        field.get("type", ""), "any"
    )
    if field.get("format") == "date-time":
        name = "moment"
    limits = [
        f"{sign} {field[key]:,}"
        for key, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
        if key in field
    ]
    least, most = field.get("minLength", 1), field.get("maxLength")
    if field.get("type") == "string" and most is not None:
        limits.append(f"{least} to {most} characters")
    return ", ".join([name, *limits])


def _choices(values: list[Any]) -> str:
    return " or ".join(f"`{value}`" for value in values)


def _settings() -> str:
    parts = [
        "# Settings",
        MADE,
        "Of an application, of how AWS is reached, and of Spark. Unknown names are refused. Times are in seconds.",
    ]
    for model in SETTINGS:
        parts += [f"## {model.__name__}", _first_paragraph(model)]
        parts.append(_table(("field", "type", "default", "meaning"), (_row(row) for row in field_rows(model))))
    example = "Example: [the API](api.md#kclapplicationcomponent)."
    parts += ["## KclApplicationComponent", f"The `attributes` of a `defs.yaml`. {example}"]
    parts.append(_component_table(kcl.KclApplicationComponent))
    for attribute, kind in COMPONENT_PARTS.items():
        parts += [f"`{attribute}`: {_first_paragraph(kind)}", _component_table(kind)]
    shared = ", ".join(f"`{name}` ([{kind}](#{kind.lower()}))" for name, kind in _shared_settings().items())
    parts.append(f"{shared}: the attributes are the fields of these classes.")
    return _joined(parts)


def _shared_settings() -> Mapping[str, str]:
    """The attributes of a component whose type is a class of settings, with the name of this class."""
    written = {field.name: _without_metadata(field.type) for field in fields(kcl.KclApplicationComponent)}
    names = {kind.__name__ for kind in SETTINGS}
    kinds = {name: kind.removesuffix(" | None") for name, kind in written.items() if isinstance(kind, str)}
    return {name: kind for name, kind in kinds.items() if kind in names}


def _row(row: tuple[str, str, str, str]) -> tuple[str, ...]:
    name, kind, default, meaning = row
    return f"`{name}`", kind, default, meaning


def _component_table(kind: Any) -> str:
    return _table(("attribute", "type", "default", "meaning"), _component_rows(kind))


def _component_rows(kind: Any) -> Iterator[tuple[str, ...]]:
    meanings = attribute_docs(kind)
    for field in fields(kind):
        written = f"`{_annotation(_without_metadata(field.type))}`".replace("|", "\\|")
        yield f"`{field.name}`", written, _component_default(field), meanings.get(field.name, "")


def _component_default(field: Any) -> str:
    if field.default is MISSING:
        return "required" if field.default_factory is MISSING else ""
    return _plain_default(field.default)


# --- command line


def _cli() -> str:
    parser = cli.parser()
    parts = ["# The command line", MADE, "`kcl-dagster VERB TARGET OPTIONS`. " + _answers()]
    (verbs,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))  # noqa: SLF001
    shared = _options(verbs.choices["status"]) & _options(verbs.choices["plan"]) - {"--json"}
    parts.append("## Which application")
    parts.append(_table(("option", "meaning"), _option_rows(verbs.choices["status"], shared)))
    in_job = {operation.name: operation for operation in OPERATIONS if operation.is_in_job}
    for name, verb in {**verbs.choices, "emulator": emulator_parser("kcl-dagster emulator")}.items():
        parts += [f"## {name}", f"{_capital(verb.description or _help_of(verbs, name)).removesuffix('.')}."]
        if name in in_job:
            parts.append(f"In the job `<application>_admin`: `{_config_of(in_job[name])}`.")
        # The emulator has an option --region, too, but with another meaning: the region that it imitates.
        named_elsewhere = set() if name == "emulator" else shared
        rows = list(_option_rows(verb, _options(verb) - named_elsewhere))
        if rows:
            parts.append(_table(("option", "meaning"), rows))
    return _joined(parts)


def _config_of(operation: type[Operation]) -> str:
    """The config with which the launchpad is filled in, see `filled_in`."""
    return yaml.safe_dump(
        {operation.name: filled_in(operation)}, default_flow_style=True, sort_keys=False, width=1000
    ).strip()


def _answers() -> str:
    answers = {cli.WELL: "all is well", cli.WRONG: "something is wrong with the application"}
    answers[cli.UNANSWERED] = "it was refused or could not be answered"
    return "Ends with " + ", ".join(f"{code} when {meaning}" for code, meaning in answers.items()) + "."


def _help_of(verbs: Any, name: str) -> str:
    return next((action.help or "" for action in verbs._choices_actions if action.dest == name), "")  # noqa: SLF001


def _options(parser: argparse.ArgumentParser) -> set[str]:
    return {_option(action) for action in parser._actions if _is_shown(action)}  # noqa: SLF001


def _is_shown(action: argparse.Action) -> bool:
    return action.dest != "help" and action.help != argparse.SUPPRESS


def _option(action: argparse.Action) -> str:
    return action.option_strings[-1] if action.option_strings else (action.metavar or action.dest)  # type: ignore[return-value]


def _option_rows(parser: argparse.ArgumentParser, wanted: set[str]) -> Iterator[tuple[str, ...]]:
    for action in parser._actions:  # noqa: SLF001
        if _option(action) in wanted and _is_shown(action):
            yield f"`{_usage(action)}`", _option_meaning(action)


def _usage(action: argparse.Action) -> str:
    name = _option(action)
    if not action.option_strings or action.nargs == 0:
        return name
    values = " ".join([action.dest.upper()] * (2 if action.nargs == "+" else 1))
    return f"{name} {values} …" if action.nargs == "+" else f"{name} {values}"


def _option_meaning(action: argparse.Action) -> str:
    notes = []
    if action.required and action.option_strings:
        notes.append("required")
    if (
        "%(default)" not in (action.help or "")
        and action.default not in (None, False, (), [], argparse.SUPPRESS)
        and action.option_strings
    ):
        notes.append(f"{action.default} when left out")
    meaning = (action.help or "") % {**vars(action), "prog": "kcl-dagster"}
    return "; ".join([text for text in (meaning, *notes) if text])


# --- records, checks, errors


def _records() -> str:
    text = inspect.getdoc(schema) or ""
    body = text.partition("\n")[2].strip()
    title = "# The columns of a batch"
    return _joined([title, MADE, "What a transform gets, one row a record.", _flat_table(body)])


def _flat_table(text: str) -> str:
    """Join the rows of a table that a docstring breaks over two lines, because Markdown does not allow this."""
    rows: list[list[str]] = []
    out: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if rows and not cells[0] and len(rows) > 1:
                rows[-1] = [f"{old} {new}".strip() for old, new in zip(rows[-1], cells, strict=True)]
            else:
                rows.append(cells)
            continue
        if rows:
            out += [f"| {' | '.join(row)} |" if not set(row[0]) <= {"-"} else "|---|---|---|" for row in rows]
            rows = []
        out.append(line)
    return "\n".join(out)


def _checks() -> str:
    parts = ["# Assets and their checks", MADE]
    parts.append("The assets of an application, in a group of its name:")
    roles = [(f"`{role.value}`", _asset_text(role)) for role in translator.Role]
    parts.append(_table(("asset", "what it shows"), roles))
    parts.append("A check fails when its problem lasts longer than its patience, and passes as soon as it is over.")
    rows = [
        (
            f"`{check.name}`",
            check.role.value,
            _severity(check),
            f"{check.patience:g} s" if check.patience else "",
            check.description,
            check.remedy,
        )
        for check in asset_checks.CHECKS
    ]
    parts.append(_table(("check", "of", "severity", "patience", "passes when", "when it fails"), rows))
    return _joined(parts)


def _severity(check: asset_checks.KclCheck) -> str:
    always = check.severity.value.lower()
    return f"{always}, error from {check.error_from}" if check.error_from else always


def _asset_text(role: translator.Role) -> str:
    text = translator.DESCRIPTIONS.get(role, "What the consumer stored, one partition per window of time.")
    subject = "" if role is translator.Role.STREAM else "the application"
    return text.replace(" `{subject}`", f" {subject}".rstrip())


def _errors() -> str:
    return _joined(["# Errors", MADE, _markdown(inspect.getdoc(errors) or ""), *_error_parts()])


def _error_parts() -> Iterator[str]:
    rows = []
    for name, kind in vars(errors).items():
        if inspect.isclass(kind) and issubclass(kind, errors.KclError):
            rows.append((f"`{name}`", _one_line((inspect.getdoc(kind) or "").partition("\n\nExample:")[0])))
    yield _table(("error", "means"), rows)


# --- text


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(row)} |".replace("  ", " ") for row in rows]
    return "\n".join(lines)


def _fenced(code: str, language: str) -> str:
    return f"```{language}\n{code}\n```"


def _first_paragraph(thing: Any) -> str:
    return _one_line((inspect.getdoc(thing) or "").split("\n\n")[0])


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _dash(meaning: str | None) -> str:
    return f": {meaning}" if meaning else ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _joined(parts: list[str]) -> str:
    """Join blocks of text: paragraphs with a blank line between them, and the items of a list without one."""
    text = ""
    for part in (part.strip() for part in parts if part.strip()):
        together = part.startswith("- ") and text.rstrip().rpartition("\n")[2].startswith("- ")
        text += ("" if not text else "\n" if together else "\n\n") + part
    return f"{text}\n"


def main(arguments: list[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--check", action="store_true", help="say which pages are stale, and write nothing")
    is_check = options.parse_args(arguments).check
    stale = [name for name, text in pages().items() if not _is_current(PAGES / name, text)]
    if not is_check:
        PAGES.mkdir(exist_ok=True)
        for name in stale:
            (PAGES / name).write_text(pages()[name])
    sys.stdout.write("".join(f"{'stale' if is_check else 'written'}: docs/reference/{name}\n" for name in stale))
    return int(is_check and bool(stale))


def _is_current(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


if __name__ == "__main__":
    sys.exit(main())
