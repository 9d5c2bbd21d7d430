import dagster as dg
import pytest
from dagster.components.testing import create_defs_folder_sandbox

from dagster_kinesis import KinesisConsumerComponent

CONTENT = {
    "type": "dagster_kinesis.KinesisConsumerComponent",
    "attributes": {
        "application": "clicks-to-lake",
        "stream": "clicks",
        "sink": {"path": "s3://lake/clicks"},
        "connection": {"region_name": "eu-west-1"},
    },
}


@pytest.mark.filterwarnings("ignore")
def test_yaml_becomes_a_consumer_with_its_assets_and_its_leader() -> None:
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(
            component_cls=KinesisConsumerComponent, defs_yaml_contents=CONTENT
        )
        with sandbox.load_component_and_build_defs(defs_path=path) as (component, defs):
            assert isinstance(component, KinesisConsumerComponent)
            assert component.consumer().application.name == "clicks-to-lake"
            dg.Definitions.validate_loadable(defs)
            keys = {
                key.to_user_string()
                for key in defs.resolve_asset_graph().get_all_asset_keys()
            }
            assert {
                "clicks",
                "kinesis/clicks",
                "clicks-to-lake/leases",
                "clicks-to-lake/workers",
            } <= keys
            assert "clicks_to_lake_leader" in {
                sensor.name for sensor in defs.sensors or []
            }
