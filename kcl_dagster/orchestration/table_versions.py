"""Which version of its table has the records of a complete window, for engines that read a version of a table."""

import logging
import threading
from collections.abc import Mapping
from typing import Any, Final

from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.resources import KclResource
from kcl_dagster.worker.error_text import brief

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 5.0  # a tick of the leader waits no longer for a store or a catalog
VERSIONED: Final = frozenset({"deltalake", "iceberg"})  # kinds of sinks


def newest_version(consumer: Consumer, kcl: KclResource) -> Mapping[str, Any]:
    """The newest version of the consumer's table, as fields of `KclWindowMetadataSet`. Empty for a sink without
    versions, and where the table cannot be read: a leader needs no rights to it. Waits `ANSWER_SECONDS` at most."""
    open_staging = consumer.sink.open_staging
    if consumer.sink.kind not in VERSIONED or open_staging is None:
        return {}
    found: dict[str, Any] = {}

    def ask() -> None:
        try:
            sink = open_staging(consumer.stored_transform, kcl.connection("s3", consumer.application))
            found.update(sink.version())
        except Exception as error:  # of a catalog's or a table's library, or of the store
            log.info("%s: the version of the table is not known: %s", consumer.application.name, brief(error))

    thread = threading.Thread(target=ask, name="kcl-table-version", daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS)
    return dict(found)
