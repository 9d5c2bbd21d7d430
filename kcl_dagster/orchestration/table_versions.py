"""The version of a table that contains the records of a complete window, for engines that read a given version."""

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.resources import KclResource
from kcl_dagster.orchestration.sink_choices import OpenStagingSink
from kcl_dagster.worker.error_text import brief

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 5.0  # a tick of the leader waits no longer than this for stores and catalogs
VERSIONED: Final = frozenset({"deltalake", "iceberg"})  # kinds of sinks


def newest_versions(consumer: Consumer, kcl: KclResource) -> Mapping[str, Mapping[str, Any]]:
    """The newest version of each table of the consumer, as fields of `KclWindowMetadataSet`. The keys are the names
    of the tables in `SinkChoice.each`. Tables without versions are left out.

    A table that cannot be read is left out, too, because a leader need not have the right to read tables. Waits at
    most `ANSWER_SECONDS`.
    """
    found: dict[str, Mapping[str, Any]] = {}

    def ask(name: str, open_staging: OpenStagingSink) -> None:
        try:
            sink = open_staging(consumer.stored_transform, kcl.connection("s3", consumer.application))
            version = sink.version()
            if version:
                found[name] = version
        except Exception as error:  # an error of a catalog's or a table's library, or of the store
            place = f"{consumer.application.name} {name}".rstrip()
            log.info("%s: the version of the table is not known: %s", place, brief(error))

    threads = [
        threading.Thread(target=ask, args=(name, sink.open_staging), name="kcl-table-version", daemon=True)
        for name, sink in consumer.sink.each.items()
        if sink.kind in VERSIONED and sink.open_staging is not None
    ]
    for thread in threads:
        thread.start()
    until = time.monotonic() + ANSWER_SECONDS
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return dict(found)
