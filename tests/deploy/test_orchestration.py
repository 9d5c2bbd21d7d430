"""The three ways to run Dagster: each configures the same instance, runs commands that exist, and launches workers
that are as they should be."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
import sqlalchemy
import yaml
from dagster._config import process_config
from dagster._core.instance.config import dagster_instance_config_schema, validate_concurrency_config
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin
from dagster._core.workspace.load import location_origins_from_yaml_paths
from dagster_docker import DockerRunLauncher
from dagster_k8s import K8sRunLauncher
from dagster_k8s.container_context import K8sContainerContext
from dagster_k8s.job import construct_dagster_k8s_job
from dagster_k8s.models import k8s_model_from_dict, k8s_snake_case_dict
from dagster_postgres.utils import get_conn_string
from kubernetes import client as models
from kubernetes.client import ApiClient

from docs.make_deploy import PROJECT
from kcl_dagster.application import Timings
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.operations.cloudformation import service_account
from kcl_dagster.operations.doctor.orchestrator import judge_instance
from kcl_dagster.operations.rights import Component
from kcl_dagster.orchestration import resources
from kcl_dagster.orchestration.resources import KclResource
from tests.deploy.files import APPLICATION, DEPLOY, document, manifest, manifests, substituted, text
from tests.docs.commands import check_command

IMAGE = "registry.example.internal/orders:1"
WORKER = service_account(APPLICATION.name, Component.WORKER)
LEADER = service_account(APPLICATION.name, Component.LEADER)
GIVEN = {"POSTGRES_PASSWORD": "secret", "AWS_REGION": "eu-west-1", "LAKE": "s3://lake/orders", "DOCKER_GID": "998"}
COMPOSED: dict[str, Any] = yaml.safe_load(substituted(text("compose.yaml"), GIVEN))
IN_THE_CLUSTER: dict[str, Any] = yaml.safe_load(manifest("ConfigMap", "dagster-instance")["data"]["dagster.yaml"])
ON_ONE_MACHINE: dict[str, Any] = document("dagster.yaml")
VALUES: dict[str, Any] = document("values.yaml")
INSTANCES = {"dagster.yaml": ON_ONE_MACHINE, "kubernetes.yaml": IN_THE_CLUSTER}


def snake(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {re.sub(r"(?=[A-Z])", "_", key).lower(): value for key, value in settings.items()}


# --- the instance


@pytest.mark.parametrize("settings", INSTANCES.values(), ids=INSTANCES)
def test_dagster_accepts_the_instance_and_the_doctor_has_no_complaint(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in re.findall(r"'env': '(\w+)'", str(settings)):
        monkeypatch.setenv(name, "given")
    outcome = process_config(dagster_instance_config_schema(), settings)
    assert outcome.success, outcome.errors
    validate_concurrency_config(settings)
    assert {finding.verdict.value for finding in judge_instance(APPLICATION, settings)} == {"ok"}


def test_the_instances_differ_in_what_launches_runs_and_in_nothing_else() -> None:
    one, other = ({**settings, "run_launcher": None} for settings in INSTANCES.values())
    assert one == other


@pytest.mark.parametrize(
    "scheme",
    [
        *(settings["storage"]["postgres"]["postgres_db"]["scheme"] for settings in INSTANCES.values()),
        VALUES["postgresql"]["postgresqlScheme"],
    ],
    ids=[*INSTANCES, "values.yaml"],
)
def test_the_driver_of_postgresql_is_the_one_that_the_image_installs(scheme: str) -> None:
    url = get_conn_string("dagster", "secret", "127.0.0.1", "dagster", scheme=scheme)
    assert sqlalchemy.create_engine(url).driver == "psycopg2"


def test_the_helm_values_say_the_same() -> None:
    daemon, instance = VALUES["dagsterDaemon"], IN_THE_CLUSTER
    added = VALUES["additionalInstanceConfig"]
    assert added == {name: instance[name] for name in ("concurrency", "run_queue")}
    assert snake(daemon["sensors"]) == instance["sensors"]
    assert snake(daemon["runMonitoring"]) == instance["run_monitoring"]
    assert snake(VALUES["retention"]["sensor"]) == instance["retention"]["sensor"]
    assert VALUES["telemetry"] == instance["telemetry"]
    # Dagster refuses limits in both places.
    assert daemon["runCoordinator"] == {"enabled": False}


def test_with_helm_every_part_has_the_image_and_the_dagster_of_the_code_location() -> None:
    [code] = VALUES["dagster-user-deployments"]["deployments"]
    for part in ("dagsterDaemon", "dagsterWebserver"):
        assert VALUES[part]["image"] == code["image"]
    assert f"{code['image']['repository']}:{code['image']['tag']}" == IMAGE
    [pinned] = re.findall(r"^dagster==(.*)$", text("constraints.txt"), re.MULTILINE)
    for shown in (text("values.yaml"), (DEPLOY.parent / "docs/production.md").read_text()):
        assert re.findall(r"dagster/dagster --version (\S+)", shown) == [pinned]


@pytest.mark.parametrize(
    ("launcher", "settings"), [(DockerRunLauncher, ON_ONE_MACHINE), (K8sRunLauncher, IN_THE_CLUSTER)]
)
def test_a_launcher_accepts_its_settings(launcher: Any, settings: dict[str, Any]) -> None:
    given = settings["run_launcher"]
    assert (given["module"], given["class"]) == (launcher.__module__.partition(".")[0], launcher.__name__)
    outcome = process_config(launcher.config_type(), given["config"])
    assert outcome.success, outcome.errors


# --- the pods of workers


def pod(config: Mapping[str, Any], container_context: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The job that Dagster's launcher would make for a worker, as Kubernetes receives it. `container_context`: what
    the code location says of its runs."""
    kind: Any = K8sRunLauncher
    outcome = process_config(kind.config_type(), config)
    assert outcome.success, outcome.errors
    launcher: Any = SimpleNamespace(**dict.fromkeys(kind.config_type()) | dict(outcome.value or {}))
    repository = SimpleNamespace(container_image=IMAGE, container_context=container_context)
    run: Any = SimpleNamespace(job_code_origin=SimpleNamespace(repository_origin=repository), tags={})
    context = K8sContainerContext.create_for_run(run, launcher, include_run_tags=False)
    job = construct_dagster_k8s_job(
        context.get_k8s_job_config(IMAGE, launcher),
        args=["dagster", "api", "execute_run"],
        job_name="dagster-run-1",
        user_defined_k8s_config=context.run_k8s_config,
    )
    made: dict[str, Any] = ApiClient().sanitize_for_serialization(job)
    return made


def helm_launcher() -> dict[str, Any]:
    """What the chart makes of the values."""
    given = dict(VALUES["runLauncher"]["config"]["k8sRunLauncher"])
    config = snake(given.pop("runK8sConfig"))
    return {
        **snake(given),
        "service_account_name": "dagster",  # of the release, whatever the values say
        "instance_config_map": "dagster-instance",
        "postgres_password_secret": VALUES["global"]["postgresqlSecretName"],
        "run_k8s_config": config,
    }


LAUNCHERS = {"kubernetes.yaml": IN_THE_CLUSTER["run_launcher"]["config"], "values.yaml": helm_launcher()}


@pytest.mark.parametrize("config", LAUNCHERS.values(), ids=LAUNCHERS)
def test_a_worker_has_its_role_its_memory_and_the_time_to_hand_over(config: dict[str, Any]) -> None:
    job = pod(config)
    spec = job["spec"]["template"]["spec"]
    [container] = spec["containers"]
    assert spec["serviceAccountName"] == WORKER
    assert spec["terminationGracePeriodSeconds"] > Timings().handoff_timeout
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["image"] == IMAGE
    assert container["resources"] == {"requests": {"cpu": "1", "memory": "3Gi"}, "limits": {"memory": "3Gi"}}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert job["spec"]["backoffLimit"] == 0
    assert job["spec"]["template"]["metadata"]["annotations"] == {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(APPLICATION_PORT),
    }
    assert [port["containerPort"] for port in container["ports"]] == [APPLICATION_PORT]
    passwords = [one for one in container["env"] if one["name"] == "DAGSTER_PG_PASSWORD"]
    assert [one["valueFrom"]["secretKeyRef"]["name"] for one in passwords] == ["dagster-postgresql"]
    strict(models.V1Job, job)


APPLICATION_PORT = 9400


def test_with_helm_a_worker_knows_the_lake_and_the_region() -> None:
    [container] = pod(LAUNCHERS["values.yaml"])["spec"]["template"]["spec"]["containers"]
    given = {one["name"]: one.get("value") for one in container["env"]}
    assert given["LAKE"] == PROJECT.lake
    assert given["AWS_REGION"] == "eu-west-1"


def test_a_code_location_that_shares_its_settings_would_take_the_workers_role_and_memory() -> None:
    """Why values.yaml says includeConfigInLaunchedRuns: false."""
    [deployment] = VALUES["dagster-user-deployments"]["deployments"]
    assert deployment["includeConfigInLaunchedRuns"] == {"enabled": False}
    shared = {"k8s": {"service_account_name": LEADER, "resources": deployment["resources"]}}
    spec = pod(LAUNCHERS["values.yaml"], shared)["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == LEADER
    assert spec["containers"][0]["resources"]["limits"] == {"memory": "1Gi"}


# --- the environment


def environments() -> dict[str, dict[str, str]]:
    """The variables of each process that has our code, as the files set them."""
    composed = {
        name: {variable: value or "" for variable, value in one["environment"].items()}  # Compose sets empty texts
        for name, one in services()
        if name != "postgres"
    }
    launched = {name: composed["daemon"][name] for name in ON_ONE_MACHINE["run_launcher"]["config"]["env_vars"]}
    shared = manifest("ConfigMap", "dagster-environment")["data"]
    [code] = VALUES["dagster-user-deployments"]["deployments"]
    worker = VALUES["runLauncher"]["config"]["k8sRunLauncher"]["runK8sConfig"]["containerConfig"]
    found = {f"compose.yaml {name}": environment for name, environment in composed.items()}
    return found | {
        "dagster.yaml worker": launched,
        "kubernetes.yaml": shared,
        "values.yaml code": {one["name"]: one["value"] for one in code["env"]},
        "values.yaml worker": {one["name"]: one["value"] for one in worker["env"]},
    }


@pytest.mark.parametrize(
    "name",
    ["compose.yaml code", "dagster.yaml worker", "kubernetes.yaml", "values.yaml code", "values.yaml worker"],
)
def test_the_resource_and_boto3_itself_find_the_region(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for unset in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(unset, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setattr(resources, "_client", resources._client.__wrapped__)
    with pytest.raises(ConfigurationError, match="no AWS region"):
        KclResource().client("kinesis")
    for variable, value in environments()[name].items():
        if variable.startswith("AWS_"):
            monkeypatch.setenv(variable, value)
    assert KclResource().client("kinesis").meta.region_name == "eu-west-1"
    assert boto3.client("kinesis").meta.region_name == "eu-west-1"  # of the project's own code


# --- the manifests


def strict(kind: Any, given: Mapping[str, Any]) -> Any:
    """The object as the client's model of Kubernetes has it. Raises for unknown fields, and for missing ones."""
    return k8s_model_from_dict(kind, k8s_snake_case_dict(kind, given))


def title(given: Mapping[str, Any]) -> str:
    return f"{given['kind']} {given['metadata']['name']}"


@pytest.mark.parametrize("given", manifests(), ids=title)
def test_a_manifest_is_valid(given: dict[str, Any]) -> None:
    version = "".join(part.capitalize() for part in given["apiVersion"].rpartition("/")[2:])
    strict(getattr(models, f"{version}{given['kind']}"), given)
    assert given["metadata"]["namespace"] == "dagster"


def test_an_unknown_field_is_found() -> None:
    broken = {**manifest("Service", "orders-code"), "speck": {}}
    with pytest.raises(Exception, match="speck"):
        strict(models.V1Service, broken)


def deployments() -> list[dict[str, Any]]:
    return [one for one in manifests() if one["kind"] == "Deployment"]


@pytest.mark.parametrize("given", deployments(), ids=title)
def test_a_deployment_finds_what_it_names(given: dict[str, Any]) -> None:
    there = {title(one) for one in manifests()} | {"Secret dagster-postgresql"}  # its head says how to make it
    template = given["spec"]["template"]
    spec, [container] = template["spec"], template["spec"]["containers"]
    named = {f"ServiceAccount {spec['serviceAccountName']}"}
    named |= {f"ConfigMap {one['configMap']['name']}" for one in spec.get("volumes", [])}
    named |= {f"ConfigMap {one['configMapRef']['name']}" for one in container["envFrom"]}
    for one in container["env"]:
        if "valueFrom" in one:
            named.add(f"Secret {one['valueFrom']['secretKeyRef']['name']}")
    assert named <= there
    assert given["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
    assert {one["name"] for one in container.get("volumeMounts", [])} <= {
        one["name"] for one in spec.get("volumes", [])
    }
    for mount in container.get("volumeMounts", []):
        assert mount["subPath"] in manifest("ConfigMap", "dagster-instance")["data"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    check_command(container["command"])
    for probe in ("livenessProbe", "readinessProbe"):
        if "exec" in container.get(probe, {}):
            check_command(container[probe]["exec"]["command"])


def test_a_service_selects_a_deployment_and_one_of_its_ports() -> None:
    for service in (one for one in manifests() if one["kind"] == "Service"):
        [found] = [one for one in deployments() if one["metadata"]["labels"] == service["spec"]["selector"]]
        ports = {one["name"] for one in found["spec"]["template"]["spec"]["containers"][0]["ports"]}
        assert {one["targetPort"] for one in service["spec"]["ports"]} <= ports


def test_the_instance_has_every_variable_that_it_asks_for() -> None:
    given = set(manifest("ConfigMap", "dagster-environment")["data"]) | {"DAGSTER_PG_PASSWORD"}
    asked = set(re.findall(r"'env': '(\w+)'", str(IN_THE_CLUSTER)))
    assert asked <= given


def test_the_daemon_is_one() -> None:
    spec = manifest("Deployment", "dagster-daemon")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_the_webserver_and_the_daemon_find_the_code_location(tmp_path: Any) -> None:
    workspace = tmp_path / "workspace.yaml"
    workspace.write_text(manifest("ConfigMap", "dagster-instance")["data"]["workspace.yaml"])
    [origin] = location_origins_from_yaml_paths([str(workspace)])
    assert isinstance(origin, GrpcServerCodeLocationOrigin)
    [port] = manifest("Service", origin.host)["spec"]["ports"]
    assert port["port"] == origin.port


def test_only_what_launches_runs_may_ask_kubernetes() -> None:
    for name in (WORKER, LEADER):
        assert manifest("ServiceAccount", name)["automountServiceAccountToken"] is False
    [subject] = manifest("RoleBinding", "dagster")["subjects"]
    assert subject["name"] == "dagster"
    for rule in manifest("Role", "dagster")["rules"]:
        assert not {"*", "secrets"} & {*rule["verbs"], *rule["resources"]}


def test_the_image_is_named_once() -> None:
    """The code location tells Dagster its image, which is then that of the workers."""
    code = manifest("Deployment", "orders-code")["spec"]["template"]["spec"]["containers"][0]
    told = {one["name"]: one.get("value") for one in code["env"]}
    assert code["image"] == told["DAGSTER_CURRENT_IMAGE"] == IMAGE
    images = {one["spec"]["template"]["spec"]["containers"][0]["image"] for one in deployments()}
    assert images == {IMAGE}


# --- one machine


def services() -> list[tuple[str, dict[str, Any]]]:
    return list(COMPOSED["services"].items())


def test_a_variable_that_is_missing_is_refused() -> None:
    for name in GIVEN:
        with pytest.raises(KeyError, match=name):
            substituted(text("compose.yaml"), {key: value for key, value in GIVEN.items() if key != name})


@pytest.mark.parametrize(("name", "service"), services(), ids=[name for name, _ in services()])
def test_a_service_is_complete(name: str, service: dict[str, Any]) -> None:
    assert re.fullmatch(r"[a-z0-9./-]+:[a-z0-9][a-z0-9.-]*", service["image"])
    for other, condition in service.get("depends_on", {}).items():
        assert condition == {"condition": "service_healthy"}
        assert "healthcheck" in COMPOSED["services"][other], f"{name} waits for the health of {other}"
    for volume in service.get("volumes", []):
        source = volume.partition(":")[0]
        known = source in COMPOSED["volumes"] or source == "/var/run/docker.sock" or (DEPLOY / source).exists()
        assert known, source
    for command in (service.get("command"), service.get("healthcheck", {}).get("test", [])[1:]):
        if command and name != "postgres":
            check_command(command)
    if "build" in service:
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).exists()


def test_only_what_launches_runs_reaches_docker() -> None:
    reach = {name for name, one in services() if any("docker.sock" in volume for volume in one.get("volumes", []))}
    assert reach == {"daemon", "webserver"}
    assert all(COMPOSED["services"][name]["group_add"] == ["998"] for name in reach)


def test_the_webserver_is_reached_from_this_machine_only() -> None:
    ports = {name: one["ports"] for name, one in services() if "ports" in one}
    assert ports == {"webserver": ["127.0.0.1:3000:3000"]}


def test_workers_are_given_what_the_launcher_has() -> None:
    """Docker's launcher refuses to launch when one of the variables is missing."""
    config = ON_ONE_MACHINE["run_launcher"]["config"]
    for name in ("daemon", "webserver"):
        assert set(config["env_vars"]) <= COMPOSED["services"][name]["environment"].keys()
    assert config["network"] == COMPOSED["networks"]["default"]["name"]
    assert config["container_kwargs"]["stop_timeout"] > Timings().handoff_timeout
    assert (
        COMPOSED["services"]["code"]["environment"]["DAGSTER_CURRENT_IMAGE"]
        == COMPOSED["services"]["code"]["image"]
    )


def test_every_part_runs_the_same_image() -> None:
    assert len({one["image"] for name, one in services() if name != "postgres"}) == 1


def flags(command: Sequence[str]) -> dict[str, str]:
    return {one[2:]: after for one, after in pairwise(command) if one.startswith("--")}


def test_daemon_and_webserver_ask_the_code_location_where_it_listens() -> None:
    serves = flags(COMPOSED["services"]["code"]["command"])
    for name in ("daemon", "webserver"):
        asks = flags(COMPOSED["services"][name]["command"])
        assert (asks["grpc-host"], asks["grpc-port"]) == ("code", serves["port"])
