"""The files of deploy/ as data: what they contain, and what of a template CloudFormation would fill in."""

import re
from collections.abc import Mapping
from typing import Any, Final

import yaml

from docs.make_deploy import PROJECT as PROJECT
from docs.make_deploy import ROOT

DEPLOY: Final = ROOT / "deploy"
REGION: Final = "eu-west-1"
ACCOUNT: Final = "123456789012"
PSEUDO: Final = {"AWS::Region": REGION, "AWS::AccountId": ACCOUNT, "AWS::Partition": "aws"}
APPLICATION: Final = PROJECT.deployment.application


def text(name: str) -> str:
    return (DEPLOY / name).read_text()


def document(name: str) -> Any:
    return yaml.safe_load(text(name))


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text("kubernetes.yaml")))


def manifest(kind: str, name: str) -> dict[str, Any]:
    [found] = [one for one in manifests() if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def filled(value: Any) -> Any:
    """A part of the template with its `Fn::Sub` replaced by text."""
    match value:
        case {"Fn::Sub": str(named)}:
            return re.sub(r"\$\{([^}]+)\}", lambda name: PSEUDO[name[1]], named)
        case dict():
            return {key: filled(one) for key, one in value.items()}
        case list():
            return [filled(one) for one in value]
        case _:
            return value


def substituted(composed: str, environment: Mapping[str, str]) -> str:
    """Compose's variables replaced: `${NAME}`, `${NAME:-default}`, `${NAME:?}`. KeyError if one is missing."""

    def replace(found: re.Match[str]) -> str:
        given = environment.get(found["name"])
        if given:
            return given
        if found["rule"] == ":-":
            return found["rest"]
        raise KeyError(found["name"])

    return re.sub(r"\$\{(?P<name>\w+)(?:(?P<rule>:[-?])(?P<rest>[^}]*))?\}", replace, composed)
