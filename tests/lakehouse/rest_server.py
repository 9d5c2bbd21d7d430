"""Apache Iceberg's REST catalog, as a process."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.lakehouse.parts import catalog_classpath, java
from tests.lakehouse.processes import process

_MEMORY = "-Xmx256m"


@contextmanager
def rest_server(folder: Path, properties: Mapping[str, str]) -> Iterator[str]:
    """Yields its address. `properties`: of the catalog behind it, such as `warehouse`, and `s3.endpoint` for the
    files of metadata, which the server writes."""
    folder.mkdir(parents=True, exist_ok=True)
    named = {"uri": f"jdbc:sqlite:{folder}/catalog.db", **properties}
    environment = {
        f"CATALOG_{name.replace('-', '__').replace('.', '_').upper()}": value for name, value in named.items()
    }
    ready = folder / "port"
    command = [java(), _MEMORY, "-cp", catalog_classpath(), "org.apache.iceberg.rest.LocalCatalog", str(ready)]
    with process(command, folder / "rest-catalog.log", ready, environment) as port:
        yield f"http://127.0.0.1:{port}"
