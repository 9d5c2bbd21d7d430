"""The demo's requests to Dagster. They use the webserver's GraphQL, because importing Dagster takes seconds."""

import json
from http.client import HTTPException
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from demo.minutes import Materialization

ANSWER_SECONDS = 5.0

RUNS = """
{ runsOrError(filter: {statuses: [STARTED]}) { ... on Runs { results { runId tags { key value } } } } }
"""
EVENTS = """
query ($run: ID!) { logsForRun(runId: $run) { ... on EventConnection { events {
  ... on EngineEvent { metadataEntries { label ... on TextMetadataEntry { text } } } } } } }
"""
UNFINISHED = """
{ runsOrError(filter: {statuses: [QUEUED, NOT_STARTED, STARTING, STARTED]}) { ... on Runs { results {
  assetSelection { path } tags { key value } } } } }
"""
MATERIALIZATIONS = """
query ($asset: AssetKeyInput!) { assetOrError(assetKey: $asset) {
  ... on Asset { assetMaterializations(limit: 1000) {
  partition metadataEntries { label ... on IntMetadataEntry { intValue } } } } } }
"""
TICKS = """
query ($location: String!) { sensorsOrError(repositorySelector: {
  repositoryLocationName: $location, repositoryName: "__repository__"}) {
  ... on Sensors { results { name sensorState { ticks(limit: 5) { timestamp status } } } } } }
"""
RELOAD = """
mutation ($location: String!) { reloadRepositoryLocation(repositoryLocationName: $location) {
  ... on WorkspaceLocationEntry { locationOrLoadError { ... on PythonError {
    message errorChain { error { message } } } } }
  ... on Error { message } } }
"""
RELOAD_SECONDS = 120.0


class DagsterApi:
    """Sends the requests. While the webserver does not answer, results are empty."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/graphql"
        self._pids: dict[str, int] = {}

    def started_runs(self) -> dict[str, dict[str, str]]:
        """The tags of the runs that are in progress, by run id."""
        found = self._ask(RUNS, {}).get("runsOrError", {}).get("results", ())
        return {run["runId"]: {tag["key"]: tag["value"] for tag in run["tags"]} for run in found}

    def unfinished(self) -> set[tuple[str, str]]:
        """The assets and partitions for which a run is queued or in progress."""
        found = self._ask(UNFINISHED, {}).get("runsOrError", {}).get("results", ())
        return {
            (asset["path"][-1], tag["value"])
            for run in found
            for asset in run["assetSelection"] or ()
            for tag in run["tags"]
            if tag["key"] == "dagster/partition"
        }

    def pid_of(self, run_id: str) -> int | None:
        """The id of the process in which a run executes, as the in-process executor reports it."""
        if run_id not in self._pids:
            for event in self._ask(EVENTS, {"run": run_id}).get("logsForRun", {}).get("events", ()):
                metadata = {entry["label"]: entry.get("text") for entry in event.get("metadataEntries", ())}
                if metadata.keys() >= {"pid", "step_keys"}:
                    self._pids[run_id] = int(metadata["pid"])
        return self._pids.get(run_id)

    def materializations(self, asset: str, clicks: str) -> list[Materialization]:
        """The materializations of all partitions of an asset. `clicks`: the label under which their metadata have
        the number of clicks."""
        found = self._ask(MATERIALIZATIONS, {"asset": {"path": [asset]}}).get("assetOrError", {})
        return [
            Materialization(asset, one["partition"] or "", _number(one["metadataEntries"], clicks))
            for one in found.get("assetMaterializations", ())
        ]

    def last_tick(self, location: str, sensor: str) -> float:
        """The start time of the sensor's last tick that did not fail, in epoch seconds; 0 if none is known."""
        found = self._ask(TICKS, {"location": location}).get("sensorsOrError", {}).get("results", ())
        return max(
            (
                float(tick["timestamp"])
                for one in found
                if one["name"] == sensor
                for tick in one["sensorState"]["ticks"]
                if tick["status"] in {"SKIPPED", "SUCCESS"}
            ),
            default=0.0,
        )

    def reload(self, location: str) -> str | None:
        """Make a code location load its code again. Returns the reason why it cannot be loaded, or None."""
        found = self._ask(RELOAD, {"location": location}, RELOAD_SECONDS).get("reloadRepositoryLocation")
        if found is None:
            return "the webserver does not answer"
        error = found if "message" in found else found.get("locationOrLoadError") or {}
        messages = [error.get("message"), *(one["error"]["message"] for one in error.get("errorChain", ()))]
        return "\n".join(message for message in messages if message) or None

    def _ask(self, query: str, variables: dict[str, Any], seconds: float = ANSWER_SECONDS) -> dict[str, Any]:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = Request(self._url, body, {"Content-Type": "application/json"})  # noqa: S310 - our own address
        try:
            with urlopen(request, timeout=seconds) as answer:  # noqa: S310
                data: dict[str, Any] | None = json.load(answer).get("data")
        except (URLError, HTTPException, OSError, ValueError):
            return {}
        return data or {}


def _number(entries: list[dict[str, Any]], label: str) -> int | None:
    return next((entry.get("intValue") for entry in entries if entry["label"] == label), None)
