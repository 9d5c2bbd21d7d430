"""Secrets in the options of a sink: never literals, and resolved by the worker."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import deltalake
import pyiceberg.catalog
import pytest
from dagster._core.remote_representation.external_data import RepositorySnap
from dagster._serdes import serialize_value

import kcl_dagster as kcl
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.orchestration import spark_resource
from kcl_dagster.orchestration.component_models import SinkModel
from kcl_dagster.orchestration.resources import SECRETS
from kcl_dagster.orchestration.secret_options import is_secret
from kcl_dagster.spark.sinks.catalog_table import iceberg_options
from kcl_dagster.spark.sinks.delta_log import delta_options
from kcl_dagster.spark.storage import S3Options

VALUE = "never-to-be-shown"
OWN_SECRETS = {
    *("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "s3.secret-access-key", "s3.session-token"),
    *("client.secret-access-key", "client.session-token"),
}
SECRET = [
    *("AWS_SECRET_ACCESS_KEY", "aws_session_token", "s3.secret-access-key", "client.session-token", "credential"),
    *("token", "password", "clientSecret", "accesskeysecret", "adls.sas-token", "azure_storage_sas_key"),
    *("azure_storage_account_key", "azure_storage_access_key", "adls.connection-string", "hf.token"),
    *("gcs.oauth2.token", "google_service_account_key", "aws_sse_customer_key_base64", "header.Authorization"),
]
HARMLESS = [
    *("AWS_REGION", "AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "s3.access-key-id", "AWS_IAM_ROLE_ARN", "type", "uri"),
    *("warehouse", "s3.endpoint", "aws_web_identity_token_file", "google_application_credentials", "auth.type"),
    *("gcs.oauth2.token-expires-at", "oauth2-server-uri", "client.profile-name", "aws_sse_kms_key_id", "scope"),
    *("aws_container_credentials_relative_uri", "s3.sse-kms-key-id", "AWS_ALLOW_HTTP", "sassafras.name"),
]


def unchanged(records: Any) -> Any:
    return records


def of_delta(options: Mapping[str, str]) -> kcl.SinkChoice:
    return kcl.delta("s3://lake/clicks", storage_options=options)


def of_iceberg(options: Mapping[str, str]) -> kcl.SinkChoice:
    return kcl.iceberg("lake.clicks", options, catalog_name="prod")


both = pytest.mark.parametrize("choice_of", [of_delta, of_iceberg])


@pytest.mark.audit("D2")
def test_which_options_are_secret_is_told_by_their_names() -> None:
    assert [name for name in SECRET if not is_secret(name)] == []
    assert [name for name in HARMLESS if is_secret(name)] == []
    assert {name for name in kcl.KclResource.model_fields if is_secret(name)} == set(SECRETS)


@pytest.mark.audit("D2")
def test_our_own_options_for_s3_are_told_apart() -> None:
    s3 = S3Options(
        "eu-west-1",
        "http://lake",
        access_key="AKIA",
        secret_key="x",
        session_token="y",
        role_arn="arn:aws:iam::1:role/lake",
        session_name="clicks",
    )
    own = {**delta_options(s3), **iceberg_options(s3)}
    assert {name for name in own if is_secret(name)} == OWN_SECRETS


@pytest.mark.audit("D2")
@both
@pytest.mark.parametrize("name", SECRET)
def test_a_literal_is_refused_with_what_to_say_instead(
    choice_of: Callable[[Mapping[str, str]], kcl.SinkChoice], name: str
) -> None:
    with pytest.raises(ConfigurationError, match=r'say dagster.EnvVar\("[A-Z0-9_]+"\), or leave it out') as refusal:
        choice_of({"AWS_REGION": "eu-west-1", name: VALUE})
    assert name in str(refusal.value)
    assert VALUE not in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.audit("D2")
@both
@pytest.mark.parametrize(
    "address", [f"postgresql://kcl:{VALUE}@db/catalog", f"https://catalog.example/?access_token={VALUE}"]
)
def test_a_secret_in_an_address_is_refused(
    choice_of: Callable[[Mapping[str, str]], kcl.SinkChoice], address: str
) -> None:
    with pytest.raises(
        ConfigurationError, match=r'uri of kcl.*contains a secret.*EnvVar\("(LAKE_CLICKS_)?URI"\)'
    ) as error:
        choice_of({"uri": address})
    assert VALUE not in str(error.value)


@pytest.mark.audit("D2")
def test_the_component_refuses_them_as_well() -> None:
    """In YAML, a template such as `{{ env.NAME }}` is a literal by then; pyiceberg's own variables are not."""
    sink = SinkModel("lake.clicks", "iceberg", catalog={"type": "rest", "credential": VALUE})
    component = kcl.KclApplicationComponent(application="clicks", stream="clicks", sink=sink)
    with pytest.raises(ConfigurationError, match="PYICEBERG_CATALOG__DEFAULT__"):
        component.consumer()


@pytest.mark.audit("D2")
def test_what_is_not_secret_stays_as_it_was() -> None:
    options = dict.fromkeys(HARMLESS, "plain")
    assert of_delta(options).delta_options() == options
    of_iceberg(options | {"type": "rest", "uri": "https://kcl@catalog.example:8181/api?warehouse=lake"})


@pytest.mark.filterwarnings("ignore:Property `ScheduleDefinition:DeprecationWarning")  # Dagster's own
@pytest.mark.audit("D2")
@both
def test_the_serialised_repository_holds_no_secret_of_a_sink(
    choice_of: Callable[[Mapping[str, str]], kcl.SinkChoice], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_LAKE", VALUE)
    sink = choice_of({"uri": "https://catalog.example", "token": dg.EnvVar("SECRET_OF_THE_LAKE")})
    consumer = kcl.kcl_consumer(application="clicks", stream="clicks", sink=sink, name="records")(unchanged)
    definitions = kcl.build_kcl_definitions(consumer, resources={"kcl": kcl.KclResource()})
    assert VALUE not in serialize_value(RepositorySnap.from_def(definitions.get_repository_def()))
    assert VALUE not in repr(sink)


def opened_for(choice: kcl.SinkChoice) -> Any:
    """The sink as a worker opens it."""
    assert choice.open_staging is not None
    return choice.open_staging(unchanged, {})


@pytest.mark.audit("D2")
def test_the_worker_resolves_them_when_it_opens_the_sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, str]] = []

    def load(name: str, **properties: str) -> Any:
        given.append({"name": name, **properties})

    monkeypatch.setattr(pyiceberg.catalog, "load_catalog", load)
    named = {"uri": dg.EnvVar("PLACE_OF_THE_LAKE"), "token": dg.EnvVar("SECRET_OF_THE_LAKE")}
    choices = [kcl.delta(str(tmp_path), storage_options=named), of_iceberg(named)]
    for choice in choices:  # the variables are the worker's: here, they are set after the definitions were made
        with pytest.raises(ConfigurationError, match="environment variable PLACE_OF_THE_LAKE is not set"):
            opened_for(choice)
    monkeypatch.setenv("PLACE_OF_THE_LAKE", "https://catalog.example")
    monkeypatch.setenv("SECRET_OF_THE_LAKE", VALUE)
    plain = {"uri": "https://catalog.example", "token": VALUE}
    delta, _ = map(opened_for, choices)
    assert given == [{"name": "prod", **plain}]
    assert choices[0].delta_options() == plain
    opened: list[dict[str, str]] = []

    def exists(_: str, options: dict[str, str]) -> bool:
        opened.append(options)
        return False

    monkeypatch.setattr(deltalake.DeltaTable, "is_deltatable", staticmethod(exists))
    assert delta._log.open() is None
    assert opened == [plain]


SPARK_SECRETS: list[dict[str, Any]] = [
    {"conf": {"spark.hadoop.fs.s3a.secret.key": VALUE}},
    {"conf": {"spark.hadoop.fs.s3a.session.token": VALUE}},
    {"conf": {"spark.driver.extraJavaOptions": f"-Xmx1g -Djavax.net.ssl.keyStorePassword={VALUE}"}},
    {"conf": {"spark.sql.catalog.lake.uri": f"https://user:{VALUE}@catalog.example"}},
    {"url": f"sc://spark-connect:15002/;use_ssl=true;token={VALUE}", "mode": "connect"},
    {"java_options": f"-Dstore.password={VALUE}"},
]


def in_a_run(resource: kcl.KclSparkResource) -> kcl.KclSparkResource:
    """The resource as Dagster gives it to a run."""
    given: list[kcl.KclSparkResource] = []

    @dg.op
    def look(spark: kcl.KclSparkResource) -> None:
        given.append(spark)

    @dg.job
    def looks() -> None:
        look()

    with dg.DagsterInstance.ephemeral() as instance:
        definitions = dg.Definitions(jobs=[looks], resources={"spark": resource})
        assert definitions.resolve_job_def("looks").execute_in_process(instance=instance).success
    return given[0]


@pytest.mark.audit("D2")
@pytest.mark.parametrize("fields", SPARK_SECRETS)
def test_a_literal_secret_of_spark_is_refused_and_not_shown(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"of KclSparkResource is a.*EnvVar\(") as refusal:
        kcl.KclSparkResource(**fields)
    assert VALUE not in str(refusal.value)


@pytest.mark.audit("D2")
def test_what_names_a_secret_of_spark_is_no_secret() -> None:
    kcl.KclSparkResource(
        url="sc://spark-connect:15002/;use_ssl=true",
        java_options="-XX:+UseSerialGC -Dstore.path=/tmp",
        conf={
            "spark.kubernetes.executor.secretKeyRef.AWS_SECRET_ACCESS_KEY": "lake:secret",
            "spark.kubernetes.driver.secrets.lake": "/etc/secrets",
            "spark.hadoop.fs.s3a.access.key": "AKIA",
            "spark.hadoop.fs.s3a.aws.credentials.provider": "a.b.C",
            "spark.security.credentials.renewalRatio": "0.5",
        },
    )


@pytest.mark.audit("D2")
def test_a_secret_of_spark_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_URL", f"sc://spark-connect:15002/;token={VALUE}")
    monkeypatch.setenv("LAKE_SECRET", VALUE)
    name = "spark.hadoop.fs.s3a.secret.key"
    resource = kcl.KclSparkResource(
        mode="connect", url=dg.EnvVar("SPARK_URL"), conf={name: dg.EnvVar("LAKE_SECRET"), "spark.a": "b"}
    )
    started: list[Any] = []
    monkeypatch.setattr(spark_resource, "start_session", lambda settings, _: started.append(settings))
    for one in (resource, in_a_run(resource)):
        assert one.spark_session is None
        assert started[-1].url == f"sc://spark-connect:15002/;token={VALUE}"
        assert started[-1].conf == {name: VALUE, "spark.a": "b"}


@pytest.mark.parametrize(
    "make",
    [
        lambda: kcl.KclResource(endpoint_url=f"http://user:{VALUE}@localhost:4566"),
        lambda: kcl.KclResource(s3_endpoint_url=f"http://user:{VALUE}@localhost:4566"),
        lambda: kcl.parquet(f"s3://user:{VALUE}@bucket/clicks"),
        lambda: kcl.delta(f"s3://user:{VALUE}@bucket/clicks"),
    ],
)
def test_a_password_in_an_endpoint_or_a_path_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ConfigurationError, match="is an address that contains a secret") as refusal:
        make()
    assert VALUE not in str(refusal.value)


def test_an_endpoint_with_a_password_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KCL_ENDPOINT_URL", f"http://user:{VALUE}@localhost:4566")
    seen: list[str] = []

    @dg.op(required_resource_keys={"kcl"})
    def look(context: dg.OpExecutionContext) -> None:
        seen.append(context.resources.kcl.connection("kinesis")["endpoint_url"])

    @dg.job
    def looking() -> None:
        look()

    resource = kcl.KclResource(endpoint_url=dg.EnvVar("KCL_ENDPOINT_URL"))
    looking.execute_in_process(resources={"kcl": resource}, instance=dg.DagsterInstance.ephemeral())
    assert seen == [f"http://user:{VALUE}@localhost:4566"]


def test_the_names_that_a_refusal_proposes_belong_to_the_table_and_are_whole() -> None:
    with pytest.raises(ConfigurationError) as refusal:
        kcl.iceberg("lake.clicks", {"s3.secret-access-key": VALUE})
    assert 'dagster.EnvVar("LAKE_CLICKS_S3_SECRET_ACCESS_KEY")' in str(refusal.value)
    assert str(refusal.value).endswith("variable, PYICEBERG_CATALOG__DEFAULT__S3__SECRET_ACCESS_KEY")
