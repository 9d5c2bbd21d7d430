"""Which layout is found, what is refused, and what creation leaves behind."""

from typing import Any

import pytest

from kcl_dagster.application import Application, Billing, TableSettings
from kcl_dagster.errors import AccessDenied, LayoutRefused, ServiceError, TableNotFound, UnreadableItem
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.places import LayoutKind, TableLayout
from kcl_dagster.tables.table_layout import create_tables, detect_layout, verify_layout
from tests.doubles.clock import FakeClock
from tests.doubles.dynamodb import FakeDynamoDB
from tests.unit.tables.kit import (
    MADE_BY_OTHERS,
    FaultyClient,
    after,
    application,
    client_error,
    new_lease,
    passed_on,
    runtime,
)

LEASES, COORDINATOR, METRICS = "orders-app", "orders-app-CoordinatorState", "orders-app-WorkerMetricStats"
PREFIX = "TABLE_MIGRATION_STATUS_"


class Account:
    def __init__(self, **settings: Any) -> None:
        self.clock = FakeClock()
        self.dynamodb = FakeDynamoDB(self.clock, **settings)
        self.client = FaultyClient(self.dynamodb)
        self.runtime = runtime(self.clock)

    def table(self, name: str, key: str, *items: dict[str, Any]) -> None:
        self.dynamodb.create_table(
            TableName=name,
            KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        for item in items:
            self.dynamodb.put_item(TableName=name, Item=item)

    def detect(self, app: Application | None = None, *, take_over_2x: bool = False) -> TableLayout:
        return detect_layout(self.client, app or application(), self.runtime, take_over_2x=take_over_2x)

    def create(self, layout: TableLayout, app: Application | None = None) -> list[str]:
        return create_tables(self.client, app or application(), layout, self.runtime)

    def item(self, table: str, key: dict[str, Any]) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.dynamodb.get_item(TableName=table, Key=key).get("Item")
        return found

    @property
    def writes(self) -> list[str]:
        reads = {"describe_table", "get_item", "scan", "query"}
        return [operation for operation, _ in self.client.calls if operation not in reads]


@pytest.fixture
def account() -> Account:
    return Account()


def lease(key: str = "shardId-0") -> dict[str, Any]:
    return {
        "leaseKey": {"S": key},
        "leaseCounter": {"N": "5"},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
        "checkpoint": {"S": "TRIM_HORIZON"},
        "checkpointSubSequenceNumber": {"N": "0"},
    }


def version(cv: str, key: str = "leaseKey") -> dict[str, Any]:
    return {
        key: {"S": "Migration3.0"},
        "cv": {"S": cv},
        "mb": {"S": "host"},
        "mts": {"N": "17"},
        "h": {"L": [{"M": {"cv": {"S": "CLIENT_VERSION_INIT"}, "mb": {"S": "host"}, "mts": {"N": "16"}}}]},
    }


def status(tm: str) -> dict[str, Any]:
    return {"key": {"S": "TableMigration3.5"}, "tm": {"S": tm}, "mb": {"S": "host"}, "mts": {"N": "17"}}


THREE = "CLIENT_VERSION_3X"


class TestDetection:
    def test_nothing_is_written(self, account: Account) -> None:
        account.table(LEASES, "leaseKey", lease(), version(THREE))
        account.table(COORDINATOR, "key", version(THREE, "key"))
        account.detect()
        assert account.writes == []

    def test_a_new_application_gets_one_table(self, account: Account) -> None:
        assert account.detect() == TableLayout.single(application())

    def test_a_table_made_by_others_is_a_new_application(self, account: Account) -> None:
        account.table(LEASES, "leaseKey")
        assert account.detect() == TableLayout.single(application())

    def test_a_running_application_in_one_table(self, account: Account) -> None:
        account.table(LEASES, "leaseKey", lease(), version(THREE))
        assert account.detect() == TableLayout.single(application(), THREE)

    @pytest.mark.parametrize("stored", [None, "INIT", "DEPLOYED"])
    def test_a_running_application_in_three_tables(self, account: Account, stored: str | None) -> None:
        account.table(LEASES, "leaseKey", lease())
        migration = [] if stored is None else [status(PREFIX + stored)]
        account.table(COORDINATOR, "key", version(THREE, "key"), *migration)
        layout = account.detect()
        assert layout == TableLayout.legacy(application(), THREE)
        assert (layout.kind, layout.shares_one_table) == (LayoutKind.LEGACY, False)

    def test_a_fleet_that_has_moved_into_one_table(self, account: Account) -> None:
        account.table(LEASES, "leaseKey", lease(), version(THREE))
        account.table(COORDINATOR, "key", version("CLIENT_VERSION_2X", "key"), status(PREFIX + "COMPLETE"))
        assert account.detect() == TableLayout.single(application(), THREE)

    def test_an_empty_coordinator_table_without_leases_is_three_tables(self, account: Account) -> None:
        account.table(COORDINATOR, "key")
        assert account.detect() == TableLayout.legacy(application())

    def test_the_lease_table_may_have_a_name_of_its_own(self, account: Account) -> None:
        app = application(tables=TableSettings(lease_table="elsewhere"))
        account.table("elsewhere", "leaseKey", lease(), version(THREE))
        assert account.detect(app).leases.table == "elsewhere"

    @pytest.mark.parametrize("cv", ["CLIENT_VERSION_2X", "CLIENT_VERSION_UPGRADE_FROM_2X"])
    @pytest.mark.parametrize("kind", ["single", "legacy"])
    def test_a_fleet_that_takes_leases_by_itself_is_refused(self, account: Account, cv: str, kind: str) -> None:
        account.table(LEASES, "leaseKey", lease(), version(cv))
        if kind == "legacy":
            account.table(COORDINATOR, "key", version(cv, "key"))
        with pytest.raises(LayoutRefused, match=f"take leases by themselves.*{cv}.*take_over_2x"):
            account.detect()

    def test_a_fleet_that_may_be_rolled_back_is_refused(self, account: Account) -> None:
        account.table(LEASES, "leaseKey", lease(), version("CLIENT_VERSION_3X_WITH_ROLLBACK"))
        with pytest.raises(LayoutRefused, match="may still be rolled back"):
            account.detect()

    def test_leases_of_2x_are_refused(self, account: Account) -> None:
        account.table(LEASES, "leaseKey", lease())
        with pytest.raises(LayoutRefused, match=r"KCL 1\.x or 2\.x .*stop its workers"):
            account.detect()

    def test_a_fleet_in_its_first_phase_of_upgrading_is_refused(self, account: Account) -> None:
        account.table(LEASES, "leaseKey", lease())
        account.table(COORDINATOR, "key")
        with pytest.raises(LayoutRefused, match=r"KCL 1\.x or 2\.x"):
            account.detect()

    def test_leases_nobody_can_read_do_not_make_a_table_new(self, account: Account) -> None:
        account.table(LEASES, "leaseKey", {"leaseKey": {"S": "shardId-0"}})
        with pytest.raises(LayoutRefused):
            account.detect()

    def test_a_fleet_that_is_moving_is_refused(self, account: Account) -> None:
        account.table(LEASES, "leaseKey", lease())
        account.table(COORDINATOR, "key", version(THREE, "key"), status(PREFIX + "PENDING"))
        with pytest.raises(LayoutRefused, match="moving from three tables to one"):
            account.detect()

    @pytest.mark.parametrize("text", ["TABLE_MIGRATION_STATUS_UNKNOWN", "WHATEVER"])
    def test_a_state_of_a_later_kcl_is_refused(self, account: Account, text: str) -> None:
        account.table(LEASES, "leaseKey", lease())
        account.table(COORDINATOR, "key", version(THREE, "key"), status(text))
        with pytest.raises(LayoutRefused, match="use a newer kcl_dagster"):
            account.detect()

    def test_a_protocol_of_a_later_kcl_is_refused(self, account: Account) -> None:
        account.table(LEASES, "leaseKey", lease(), version("CLIENT_VERSION_4X"))
        for take_over in (False, True):
            with pytest.raises(LayoutRefused, match="use a newer kcl_dagster"):
                account.detect(take_over_2x=take_over)

    def test_a_table_of_somebody_else_is_refused(self, account: Account) -> None:
        account.table(LEASES, "id")
        with pytest.raises(LayoutRefused, match="give the application or its lease table another name"):
            account.detect()

    def test_only_not_found_means_that_there_is_no_table(self, account: Account) -> None:
        account.client.fail("describe_table", passed_on, client_error("AccessDeniedException"))
        with pytest.raises(AccessDenied, match=f"DescribeTable on table {COORDINATOR}"):
            account.detect()

    @pytest.mark.parametrize(
        ("row", "attribute"),
        [
            ({**version(THREE), "cv": {"N": "3"}}, "cv"),
            ({**version(THREE), "entityType": {"S": "LEASE"}}, "entityType"),
            ({**version(THREE), "h": {"S": "x"}}, "h"),
        ],
    )
    def test_a_state_row_nobody_writes_is_refused(
        self, account: Account, row: dict[str, Any], attribute: str
    ) -> None:
        account.table(LEASES, "leaseKey", lease(), row)
        with pytest.raises(UnreadableItem, match=f"'Migration3.0': attribute '{attribute}'"):
            account.detect()


class TestVerification:
    def verify(self, account: Account, layout: TableLayout) -> None:
        verify_layout(account.client, application(), layout, account.runtime)

    @pytest.mark.parametrize("stored", [None, "INIT", "DEPLOYED"])
    def test_a_fleet_that_stays_as_it_was_is_fine(self, account: Account, stored: str | None) -> None:
        account.table(LEASES, "leaseKey", version(THREE))
        account.table(COORDINATOR, "key", *([] if stored is None else [status(PREFIX + stored)]))
        self.verify(account, TableLayout.legacy(application()))
        self.verify(account, TableLayout.single(application()))
        assert account.writes == []

    @pytest.mark.parametrize("stored", ["PENDING", "COMPLETE", "SOMETHING_NEW"])
    def test_a_fleet_that_moves_to_one_table_is_noticed(self, account: Account, stored: str) -> None:
        account.table(COORDINATOR, "key", version(THREE, "key"), status(PREFIX + stored))
        with pytest.raises(LayoutRefused, match=f"{PREFIX}{stored} now"):
            self.verify(account, TableLayout.legacy(application()))

    @pytest.mark.parametrize("cv", ["CLIENT_VERSION_2X", "CLIENT_VERSION_9"])
    def test_a_fleet_that_changes_its_protocol_is_noticed(self, account: Account, cv: str) -> None:
        account.table(LEASES, "leaseKey", version(cv))
        with pytest.raises(LayoutRefused, match=f"{cv} now"):
            self.verify(account, TableLayout.single(application()))


class TestTakingOver:
    def test_leases_of_2x_are_taken_over_when_told(self, account: Account) -> None:
        account.table(LEASES, "leaseKey", lease())
        layout = account.detect(take_over_2x=True)
        assert layout == TableLayout.single(application(), take_over=True)
        assert account.create(layout) == []
        assert account.detect() == TableLayout.single(application(), THREE)
        assert account.item(LEASES, {"leaseKey": {"S": "shardId-0"}}) == lease()

    @pytest.mark.parametrize(
        "cv", ["CLIENT_VERSION_2X", "CLIENT_VERSION_UPGRADE_FROM_2X", "CLIENT_VERSION_3X_WITH_ROLLBACK"]
    )
    def test_a_stopped_fleet_is_taken_over_and_its_history_kept(self, account: Account, cv: str) -> None:
        account.table(LEASES, "leaseKey", lease())
        account.table(COORDINATOR, "key", version(cv, "key"))
        account.create(account.detect(take_over_2x=True))
        assert account.detect() == TableLayout.legacy(application(), THREE)
        row = account.item(COORDINATOR, {"key": {"S": "Migration3.0"}})
        assert row is not None
        assert row["mb"] == {"S": "kcl_dagster"}
        history = [entry["M"]["cv"]["S"] for entry in row["h"]["L"]]
        assert history == [cv, "CLIENT_VERSION_INIT"]

    def test_nothing_is_taken_over_without_being_told(self, account: Account) -> None:
        account.table(LEASES, "leaseKey", lease(), version(THREE))
        assert not account.detect(take_over_2x=True).take_over

    def test_a_fleet_that_moved_on_meanwhile_is_not_taken_over(self, account: Account) -> None:
        account.table(LEASES, "leaseKey", lease(), version("CLIENT_VERSION_2X"))
        layout = account.detect(take_over_2x=True)
        account.dynamodb.put_item(TableName=LEASES, Item=version("CLIENT_VERSION_UPGRADE_FROM_2X"))
        with pytest.raises(LayoutRefused, match="changed to CLIENT_VERSION_UPGRADE_FROM_2X"):
            account.create(layout)

    def test_a_change_at_the_same_moment_is_noticed(self, account: Account) -> None:
        account.table(LEASES, "leaseKey", lease(), version("CLIENT_VERSION_2X"))
        layout = account.detect(take_over_2x=True)
        account.client.fail("update_item", client_error("ConditionalCheckFailedException"))
        with pytest.raises(LayoutRefused, match="at the same moment"):
            account.create(layout)

    def test_a_java_fleet_that_starts_first_in_2x_mode_is_respected(self, account: Account) -> None:
        layout = account.detect()
        account.table(LEASES, "leaseKey", version("CLIENT_VERSION_UPGRADE_FROM_2X"))
        with pytest.raises(LayoutRefused, match="another fleet is starting or migrating"):
            account.create(layout)


class TestCreation:
    def test_a_new_application_has_one_table_with_its_index_and_says_its_protocol(self, account: Account) -> None:
        assert account.create(account.detect()) == [LEASES]
        table = account.dynamodb.describe_table(TableName=LEASES)["Table"]
        assert table["KeySchema"] == [{"AttributeName": "leaseKey", "KeyType": "HASH"}]
        assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
        (index,) = table["GlobalSecondaryIndexes"]
        assert index["IndexName"] == "LeaseOwnerToLeaseKeyIndex"
        assert index["Projection"] == {"ProjectionType": "KEYS_ONLY"}
        assert [k["AttributeName"] for k in index["KeySchema"]] == ["leaseOwner", "leaseKey"]
        row = account.item(LEASES, {"leaseKey": {"S": "Migration3.0"}})
        assert row is not None
        assert (row["cv"], row["entityType"]) == ({"S": THREE}, {"S": "CLIENT_VERSION_MIGRATION"})
        assert account.detect() == TableLayout.single(application(), THREE)

    def test_creating_again_changes_nothing(self, account: Account) -> None:
        account.create(account.detect())
        account.client.calls.clear()
        assert account.create(account.detect()) == []
        assert account.writes == []

    def test_creation_options_reach_the_new_table(self, account: Account) -> None:
        settings = TableSettings(
            billing=Billing.PROVISIONED,
            read_capacity=3,
            write_capacity=4,
            point_in_time_recovery=True,
            deletion_protection=True,
            kms_key="arn:aws:kms:eu-west-1:123456789012:key/tables",
            tags={"team": "orders", "env": "test"},
            owner_index=False,
        )
        app = application(tables=settings)
        account.create(account.detect(app), app)
        table = account.dynamodb.describe_table(TableName=LEASES)["Table"]
        assert table["ProvisionedThroughput"]["ReadCapacityUnits"] == 3
        assert table["ProvisionedThroughput"]["WriteCapacityUnits"] == 4
        assert table["DeletionProtectionEnabled"]
        assert "GlobalSecondaryIndexes" not in table
        (creation,) = [p for operation, p in account.client.calls if operation == "create_table"]
        assert creation["Tags"] == [{"Key": "env", "Value": "test"}, {"Key": "team", "Value": "orders"}]
        assert creation["SSESpecification"] == {
            "Enabled": True,
            "SSEType": "KMS",
            "KMSMasterKeyId": "arn:aws:kms:eu-west-1:123456789012:key/tables",
        }
        (backups,) = [p for operation, p in account.client.calls if operation == "update_continuous_backups"]
        assert backups["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}

    def test_creation_options_are_not_applied_to_a_table_that_exists(self, account: Account) -> None:
        account.table(LEASES, "leaseKey")
        app = application(tables=TableSettings(point_in_time_recovery=True, deletion_protection=True))
        assert account.create(account.detect(app), app) == []
        assert account.writes == ["put_item"]  # Migration3.0

    def test_tables_made_by_others_need_no_right_to_create(self, account: Account) -> None:
        app = application(tables=MADE_BY_OTHERS)
        with pytest.raises(TableNotFound, match=r"create is false: make it with the hash key leaseKey \(string\)"):
            account.create(account.detect(app), app)
        account.table(LEASES, "leaseKey")
        assert account.create(account.detect(app), app) == []
        assert account.detect(app) == TableLayout.single(app, THREE)

    def test_the_missing_table_of_an_old_layout_is_made(self, account: Account) -> None:
        account.table(LEASES, "leaseKey", lease())
        account.table(COORDINATOR, "key", version(THREE, "key"))
        assert account.create(account.detect()) == [METRICS]
        table = account.dynamodb.describe_table(TableName=METRICS)["Table"]
        assert table["KeySchema"] == [{"AttributeName": "wid", "KeyType": "HASH"}]
        assert "GlobalSecondaryIndexes" not in table

    def test_creation_waits_until_the_table_can_be_used(self) -> None:
        account = Account(creation_seconds=25.0)
        began = account.clock.monotonic()
        account.create(account.detect())
        assert 25.0 <= account.clock.monotonic() - began < 30.0
        assert LeaseTable(account.client, application(), account.detect(), account.runtime).create(new_lease())

    def test_a_table_that_never_comes_up_is_reported(self) -> None:
        account = Account(creation_seconds=10_000.0)
        with pytest.raises(ServiceError, match="should be ACTIVE and is CREATING after 600 s"):
            account.create(account.detect())

    def test_two_that_create_at_once_agree(self, account: Account) -> None:
        layout = account.detect()
        other = FaultyClient(account.dynamodb)

        def create_meanwhile() -> None:
            assert create_tables(other, application(), layout, account.runtime) == [LEASES]

        account.client.fail("describe_table", after(passed_on, create_meanwhile))
        assert account.create(layout) == []
        assert account.detect() == TableLayout.single(application(), THREE)

    def test_backups_are_asked_for_again_while_they_are_not_available(self, account: Account) -> None:
        app = application(tables=TableSettings(point_in_time_recovery=True))
        account.client.fail(
            "update_continuous_backups", *[client_error("ContinuousBackupsUnavailableException")] * 3
        )
        account.create(account.detect(app), app)
        assert account.client.count("update_continuous_backups") == 4

    def test_backups_that_are_refused_are_reported(self, account: Account) -> None:
        app = application(tables=TableSettings(point_in_time_recovery=True))
        account.client.fail("update_continuous_backups", client_error("AccessDeniedException"))
        with pytest.raises(AccessDenied, match="UpdateContinuousBackups"):
            account.create(account.detect(app), app)

    def test_the_protocol_is_on_record_before_the_first_lease_can_be(self, account: Account) -> None:
        account.create(account.detect())
        assert account.writes == ["create_table", "put_item"]
