"""Whatever somebody configures is an application that means itself, or is refused by name."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from kcl_dagster.application import Application, TelemetrySettings
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.orchestration.component_models import TelemetryModel

FULL: dict[str, Any] = json.loads(
    Application.model_validate(
        {
            "name": "orders-app",
            "streams": [
                {"name": "clicks", "start": {"position": "AT_TIMESTAMP", "timestamp": "2026-11-01T00:00:00Z"}},
                {"name": "taps"},
            ],
            "multi_stream": True,
        }
    ).model_dump_json()
)


def places(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every place in a document."""
    found = [path] if path else []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, member in inner:
        found += places(member, (*path, name))
    return found


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["LATEST", "AT_TIMESTAMP", "balanced", "kcl", "continue", "2026-01-01", "nan", "-1", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def changed(place: tuple[str | int, ...], value: object, *, renamed: bool) -> dict[str, Any]:
    document: Any = copy.deepcopy(FULL)
    inner = document
    for name in place[:-1]:
        inner = inner[name]
    if renamed and isinstance(inner, dict):
        inner[f"{place[-1]}x"] = inner.pop(place[-1])
    else:
        inner[place[-1]] = value
    whole: dict[str, Any] = document
    return whole


@settings(max_examples=300)
@given(st.sampled_from(places(FULL)), anything, st.sampled_from([False, False, False, True]))
def test_a_setting_of_any_value_is_understood_or_refused(
    place: tuple[str | int, ...], value: object, renamed: bool
) -> None:
    try:
        application = Application.model_validate(changed(place, value, renamed=renamed))
    except (ValidationError, ConfigurationError):
        return
    assert not renamed or isinstance(place[-1], int)
    again = Application.model_validate_json(application.model_dump_json())
    assert again == application


@given(anything)
def test_a_configuration_of_any_other_shape_is_refused(document: object) -> None:
    with pytest.raises(ValidationError):
        Application.model_validate(document)


ARN = "arn:aws:kinesis:eu-north-1:123456789012:stream/orders"


def test_the_arn_of_a_stream_says_its_name_and_where_it_is() -> None:
    application = Application(name="orders-app", streams=ARN)
    [stream] = application.streams
    assert (stream.name, stream.arn, stream.region) == ("orders", ARN, "eu-north-1")
    assert application.kinesis_access == {"region": "eu-north-1", "stream_arns": ARN}
    assert Application.model_validate_json(application.model_dump_json()) == application
    by_name = Application(name="orders-app", streams="orders")
    assert (by_name.streams[0].region, by_name.kinesis_access) == (None, {})


@pytest.mark.parametrize(
    ("stream", "says"),
    [
        ({"name": "taps", "arn": ARN}, "has the name orders, and not taps"),
        ({"name": ARN, "account": "210987654321"}, "has the account 123456789012"),
        ({"name": "orders", "arn": "arn:aws:kinesis:eu-north-1:123456789012:stream/"}, "not the ARN"),
        ("arn:aws:s3:::orders", "not the ARN"),
        ({"name": ARN, "consumer_arn": f"{ARN}/consumer/lake"}, "not the ARN of a consumer"),
        ({"name": ARN, "consumer_arn": f"{ARN}-2/consumer/lake:1"}, "is not one of stream arn:aws"),
        ({"name": "taps", "consumer_arn": f"{ARN}/consumer/lake:1"}, "is not one of stream taps"),
    ],
)
def test_an_arn_that_cannot_be_meant_is_refused(stream: Any, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Application(name="orders-app", streams=(stream,))


def test_an_application_reads_from_one_region() -> None:
    with pytest.raises(ValidationError, match="from one region"):
        Application(
            name="orders-app",
            streams=(ARN, "arn:aws:kinesis:eu-west-1:123456789012:stream/taps"),
            multi_stream=True,
        )


@pytest.mark.parametrize(
    "endpoint",
    ["http://127.0.0.1:4318", "https://collector.example/otel", "http://[::1]:4318/", "http://h/v1/traces-of-mine"],
)
def test_the_address_of_a_collector_is_taken(endpoint: str) -> None:
    assert TelemetrySettings(otlp_endpoint=endpoint).otlp_endpoint == endpoint


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://user:hunter2@h:4318",
        "https://hunter2@h",
        "https://h/?api_key=hunter2",
        "https://h/otel;token=hunter2",
        "user:hunter2@h:4318",
        "https://h/#hunter2",
    ],
)
def test_a_secret_in_the_address_of_a_collector_is_refused_and_not_shown(endpoint: str) -> None:
    for made in (
        lambda: TelemetrySettings(otlp_endpoint=endpoint),
        lambda: Application.model_validate(FULL | {"telemetry": {"otlp_endpoint": endpoint}}),
        lambda: TelemetryModel(otlp_endpoint=endpoint).settings(),
    ):
        with pytest.raises(ConfigurationError, match="OTEL_EXPORTER_OTLP_HEADERS") as refused:
            made()
        assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        ("http://h:4318/v1/traces", "must not end with the path"),
        ("http://h:4318/v1/metrics/", "must not end with the path"),
        ("http://h:4318/otel/v1/logs", "must not end with the path"),
        ("grpc://h:4317", "must be the address of a collector"),
        ("h:4318", "must be the address of a collector"),
        ("http://", "must be the address of a collector"),
        ("http://h h", "must be the address of a collector"),
    ],
)
def test_an_address_to_which_nothing_can_be_sent_is_refused(endpoint: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TelemetrySettings(otlp_endpoint=endpoint)
