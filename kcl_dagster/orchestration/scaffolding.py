"""The command `dg scaffold defs kcl_dagster.KclApplicationComponent clicks`, which writes a `defs.yaml` that
works unchanged.
"""

from typing import Any

from dagster.components.component_scaffolding import scaffold_component
from dagster.components.scaffold.scaffold import Scaffolder, ScaffoldRequest
from pydantic import BaseModel, Field


class KclScaffoldParams(BaseModel):
    """The options of the command. By default, they follow from the name of the folder."""

    application: str | None = Field(
        default=None, description="Name of the application, which is also the name of its lease table."
    )
    stream: str | None = Field(default=None, description="Name of the stream.")
    path: str | None = Field(default=None, description="Where records go: a directory, or s3://bucket/prefix.")
    region: str | None = Field(default=None, description="AWS region of the streams and tables.")


class KclApplicationScaffolder(Scaffolder[KclScaffoldParams]):
    """Writes the settings that are required, and no others."""

    @classmethod
    def get_scaffold_params(cls) -> type[KclScaffoldParams]:
        return KclScaffoldParams

    def scaffold(self, request: ScaffoldRequest[KclScaffoldParams]) -> None:
        scaffold_component(request, attributes(request.target_path.name, request.params))


def attributes(folder: str, params: KclScaffoldParams) -> dict[str, Any]:
    """The attributes of a component in a folder with this name. Without a region, boto3's configuration applies."""
    stream = params.stream or folder
    return {
        "application": params.application or f"{stream}-to-lake",
        "stream": stream,
        "sink": {"path": params.path or f"lake/{stream}"},
        "connection": {"region_name": params.region} if params.region else {},
    }
