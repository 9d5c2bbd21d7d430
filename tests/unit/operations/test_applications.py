"""Which applications an account has."""

import json

import pytest

from kcl_dagster.application import Application
from kcl_dagster.errors import AccessDenied
from kcl_dagster.operations.applications import list_applications
from kcl_dagster.operations.rights import Component, Deployment, policy
from tests.unit.operations.conftest import Shop

pytestmark = pytest.mark.audit("F13")


def other_table(shop: Shop, name: str, key: str) -> None:
    shop.dynamodb.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    shop.clock.advance(60)


def test_an_application_is_found_by_its_table_with_leases_workers_and_leader(shop: Shop) -> None:
    shop.serve()
    other_table(shop, "customers", "id")
    found = list_applications(shop.dynamodb, shop.runtime)
    assert json.loads(json.dumps(found.to_document())) == {
        "applications": [
            {
                "application": "orders-app",
                "layout": "single",
                "open_leases": 2,
                "finished_leases": 0,
                "workers": 1,
                "leader": "dagster",
                "problem": None,
            }
        ],
        "denied": [],
    }
    assert str(found.found[0]) == "orders-app: 2 open leases, 1 worker, leader dagster, layout single"


def test_a_fleet_of_kcl_2_is_found_and_the_problem_told(shop: Shop) -> None:
    other_table(shop, "java-app", "leaseKey")
    item = {"leaseKey": {"S": "shardId-000000000000"}, "leaseCounter": {"N": "3"}, "checkpoint": {"S": "SHARD_END"}}
    shop.dynamodb.put_item(TableName="java-app", Item=item)
    (one,) = list_applications(shop.dynamodb, shop.runtime).found
    assert (one.name, one.layout, one.open_leases, one.finished_leases) == ("java-app", None, 0, 1)
    assert "KCL 1.x or 2.x" in str(one)


def test_an_account_without_applications_has_none(shop: Shop) -> None:
    other_table(shop, "customers", "id")
    assert list_applications(shop.dynamodb, shop.runtime).found == []


def test_tables_that_may_not_be_looked_at_are_named(shop: Shop) -> None:
    shop.serve()
    shop.dynamodb.denied["describe_table"] = "AccessDeniedException"
    assert list_applications(shop.dynamodb, shop.runtime).denied == ["orders-app"]
    shop.dynamodb.denied["list_tables"] = "AccessDeniedException"
    with pytest.raises(AccessDenied):
        list_applications(shop.dynamodb, shop.runtime)


def test_only_an_operator_who_lists_gets_the_right_to_look_at_all_tables() -> None:
    application = Application(name="orders", streams=("orders",))
    for lists in (False, True):
        deployment = Deployment(application, "eu-west-1", "123456789012", lists_applications=lists)
        for component in Component:
            text = json.dumps(policy(component, deployment))
            assert ("ListTables" in text) == ("table/*" in text) == (lists and component is Component.OPERATOR)
