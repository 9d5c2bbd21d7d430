"""grafana.json and alerts.yaml: expressions that Prometheus accepts, on metrics and labels that workers serve."""

import json
import logging
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import promql_parser as promql
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kcl_dagster.leader.tick_report import TickReport
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.telemetry.batch_traces import BatchTraces
from kcl_dagster.telemetry.tick_traces import TickTraces
from kcl_dagster.telemetry.units import UNITS
from kcl_dagster.telemetry.worker_metrics import EXPORTS_FAILED, FAMILIES, SPANS_LOST, open_telemetry
from kcl_dagster.worker.delivery import at_once
from kcl_dagster.worker.events import EventKind, WorkerEvent
from kcl_dagster.worker.renewal import RenewalReport
from kcl_dagster.worker.report import BatchReport, LeaseReport, Outcome
from kcl_dagster.worker.spans import BATCH
from tests.deploy.files import APPLICATION, DEPLOY, document, text
from tests.unit.telemetry.openmetrics import Page, parse
from tests.unit.worker.kit import World

SHARD = "shardId-000000000000"
DASHBOARD: dict[str, Any] = json.loads(text("grafana.json"))
RULES: list[dict[str, Any]] = document("alerts.yaml")["groups"][0]["rules"]
ALL_PANELS = [
    below for panel in DASHBOARD["panels"] for below in (panel["panels"] if panel["type"] == "row" else [panel])
]
VARIABLES = {"$application": APPLICATION.name, "$__rate_interval": "5m"}


def panels() -> Iterator[tuple[str, str, str]]:
    """Title, expression, legend."""
    for panel in ALL_PANELS:
        for target in panel.get("targets", ()) if panel["datasource"]["type"] == "prometheus" else ():
            expression = target["expr"]
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            yield panel["title"], expression, target["legendFormat"]


EXPRESSIONS = {f"{title} {number}": expr for number, (title, expr, _) in enumerate(panels())}
EXPRESSIONS |= {rule["alert"]: rule["expr"] for rule in RULES}


@pytest.fixture(scope="module")
def page() -> Page:
    """What a worker serves that has had every outcome, every event and every result of a renewal."""
    world = World()
    application = world.application.model_copy(update={"name": APPLICATION.name})
    identity = world.worker("worker-000").worker.identity
    log = logging.getLogger("tests.run")
    with open_telemetry(application, identity, world.runtime, lambda _: SimpleNamespace(), log) as telemetry:
        for outcome in sorted(Outcome, key=lambda one: one is Outcome.COMMITTED):
            lease = LeaseReport(
                LeaseKey(SHARD),
                StreamIdentifier("orders"),
                SHARD,
                outcome,
                1,
                Checkpoint("1"),
                broken_aggregates=1,
                millis_behind=0,
            )
            telemetry.batch(BatchReport((lease,)))
        for kind in EventKind:
            telemetry.event(WorkerEvent(kind, "happened"))
        key = LeaseKey(SHARD)
        telemetry.renewal(RenewalReport(renewed=[key], lost=[key], failed=[key]), 0.1, 1)
        telemetry.complete(WrittenThrough(1))
        telemetry.registry.add(UNITS, 1, operation="UpdateItem", kind="write")
        telemetry.registry.add(SPANS_LOST, 1)
        telemetry.registry.add(EXPORTS_FAILED, 1)
        return parse(telemetry.registry.render())


@dataclass
class Selector:
    """A part of an expression that chooses series. `matchers`: label, operator, value."""

    name: str
    matchers: Sequence[tuple[str, str, str]]

    def chooses(self, name: str, labels: dict[str, str]) -> bool:
        return name == self.name and all(
            _fits(labels.get(label, ""), op, value) for label, op, value in self.matchers
        )


def _fits(given: str, operator: str, value: str) -> bool:
    match operator:
        case "=":
            return given == value
        case "!=":
            return given != value
        case "=~":
            return re.fullmatch(value, given) is not None
        case _:
            return re.fullmatch(value, given) is None


OPERATORS = {"MatchOp.Equal": "=", "MatchOp.NotEqual": "!=", "MatchOp.Re": "=~", "MatchOp.NotRe": "!~"}


def selectors(expression: str) -> list[Selector]:
    found: list[Selector] = []

    def look(node: Any) -> None:
        if isinstance(node, promql.VectorSelector):
            matchers = [(one.name, OPERATORS[str(one.op)], one.value) for one in node.matchers.matchers]
            found.append(Selector(node.name or "", matchers))
        for name in ("lhs", "rhs", "expr", "vector_selector", "args"):
            below = getattr(node, name, None)
            for one in below if isinstance(below, list) else [below]:
                if one is not None and not isinstance(one, (str, int, float)):
                    look(one)

    look(promql.parse(expression))
    return found


def grouped(expression: str) -> set[str]:
    return {
        name for names in re.findall(r"\bby \(([^)]*)\)", expression) for name in names.replace(" ", "").split(",")
    }


@pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=EXPRESSIONS)
def test_an_expression_finds_what_a_worker_serves(expression: str, page: Page) -> None:
    chosen = selectors(expression)
    assert chosen
    for selector in chosen:
        series = [dict(labels) for name, labels in page.samples if selector.chooses(name, dict(labels))]
        assert series, f"{expression}: a worker serves no {selector}"
        labels = set().union(*series)
        assert grouped(expression) <= labels, f"{expression}: {selector.name} has only the labels {sorted(labels)}"


@pytest.mark.parametrize(
    "wrong", ['kcl_leases{worker="nobody"}', "kcl_lease", 'kcl_events_total{kind="data_lost"}']
)
def test_an_expression_that_finds_nothing_is_noticed(wrong: str, page: Page) -> None:
    with pytest.raises(AssertionError, match="a worker serves no"):
        test_an_expression_finds_what_a_worker_serves(wrong, page)


def test_expressions_are_tested_on_a_page_with_every_metric(page: Page) -> None:
    assert {family.sample for family in FAMILIES} == {name for name, _ in page.samples}


def test_every_metric_of_a_worker_is_in_the_dashboard(page: Page) -> None:
    shown = {selector.name for _, expression, _ in panels() for selector in selectors(expression)}
    assert shown | {"kcl_worker_info"} == {name for name, _ in page.samples}


def test_queries_of_traces_name_what_a_worker_and_a_leader_send() -> None:
    world, exporter = World(), InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    facts = {"kcl.application": APPLICATION.name}
    traces = BatchTraces(provider.get_tracer("kcl_dagster"), facts, world.clock, at_once)
    with traces.span(BATCH), traces.span("write"):
        pass
    ticks = TickTraces(provider.get_tracer("kcl_dagster"), facts, world.clock, at_once)
    ticks.tick(TickReport(leading=True))
    sent = {span.name: set(span.attributes or {}) for span in exporter.get_finished_spans() if span.parent is None}
    queries = [panel["targets"][0]["query"] for panel in ALL_PANELS if panel["datasource"]["type"] == "tempo"]
    assert queries
    asked = [(name, query) for query in queries for name in re.findall(r'name = "([^"]+)"', query)]
    assert len(asked) == len(queries)
    assert {name for name, _ in asked} == sent.keys() == {"batch", "tick"}
    for name, query in asked:
        assert set(re.findall(r"span\.([\w.]+)", query)) <= sent[name]


@pytest.mark.parametrize(("title", "expression", "legend"), list(panels()))
def test_a_legend_names_labels_that_the_expression_keeps(title: str, expression: str, legend: str) -> None:
    assert set(re.findall(r"\{\{(\w+)\}\}", legend)) == grouped(expression), title


def test_a_dashboard_is_complete() -> None:
    rows = [panel for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    identifiers = [panel["id"] for panel in [*ALL_PANELS, *rows]]
    assert len(set(identifiers)) == len(identifiers)
    assert {variable["name"] for variable in DASHBOARD["templating"]["list"]} == {
        "datasource",
        "application",
        "tempo",
    }
    taken: set[tuple[int, int]] = set()
    for panel in [*ALL_PANELS, *rows]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, f"{panel['title']} covers another panel"
        assert at["x"] + at["w"] <= 24
        taken |= cells


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_says_how_urgent_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert rule["annotations"].keys() == {"summary", "description"}
    named = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
    assert named <= grouped(rule["expr"]), "labels that the expression does not keep are empty"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed")
def test_prometheus_accepts_the_rules() -> None:
    outcome = subprocess.run(["promtool", "check", "rules", DEPLOY / "alerts.yaml"], capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
