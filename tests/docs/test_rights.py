"""The policy in docs/production.md is what is asked for: no right too few, none too many."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import botocore.session
import pytest

import kcl_dagster
from kcl_dagster.operations.doctor import diagnose
from kcl_dagster.operations.doctor.diagnosis import Patient
from tests.docs.pages import ROOT, all_blocks
from tests.unit.operations.conftest import Shop

PACKAGE = Path(kcl_dagster.__file__).parent
# Serve others, or are others' tools: what they ask is not asked of the reader's account.
OURS_ALONE = {"emulator", "testing"}
# AWS's name of a right where it is not the operation's.
RIGHTS = {
    "s3:CopyObject": {"s3:GetObject", "s3:PutObject"},
    "s3:DeleteObjects": {"s3:DeleteObject"},
    "s3:ListObjectsV2": {"s3:ListBucket"},
    "dynamodb:TransactWriteItems": {"dynamodb:PutItem", "dynamodb:UpdateItem"},
    "sts:AssumeRole": set[str](),  # belongs to the role that is assumed, in its own trust policy
    "sts:GetCallerIdentity": set[str](),  # needs none
    "dynamodb:ListTables": set[str](),  # asked where a table is missing, and not missed when denied
}
# Rights that no operation of their name uses.
IMPLIED = {"dynamodb:TagResource": "CreateTable with tags"}


def operations() -> dict[str, str]:
    """Method of a boto3 client -> `service:Operation`."""
    session = botocore.session.get_session()
    found: dict[str, str] = {}
    for service in ("s3", "sts", "cloudwatch", "kinesis", "dynamodb"):
        for operation in session.get_service_model(service).operation_names:
            method = botocore.xform_name(operation)
            found[method] = f"{service}:{operation}"
    return found


def called() -> Iterator[str]:
    """Every text in the package that is the name of a method: that is how requests are written."""
    known = operations()
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).parts[0] in OURS_ALONE:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and node.value in known:
                yield known[node.value]


def needed() -> set[str]:
    return {right for operation in called() for right in RIGHTS.get(operation, {operation})}


@pytest.fixture(scope="module")
def policy() -> set[str]:
    [block] = [block for block in all_blocks("json") if block.page == ROOT / "docs/production.md"]
    return {action for statement in json.loads(block.text)["Statement"] for action in statement["Action"]}


def test_the_policy_allows_what_is_called(policy: set[str]) -> None:
    assert needed() - policy == set()


def test_the_policy_allows_nothing_else(policy: set[str]) -> None:
    assert policy - needed() - set(IMPLIED) == set()


def test_the_doctor_asks_for_nothing_that_the_policy_does_not_allow(policy: set[str]) -> None:
    shop = Shop()
    shop.put(b"one")
    shop.serve()
    found = diagnose(Patient(shop.application, shop.dynamodb, shop.kinesis, shop.runtime))
    asked = {finding.check.removeprefix("iam ") for finding in found.findings if finding.check.startswith("iam ")}
    assert len(asked) >= 8
    assert asked - policy == set()
