"""The row in which a leader saves its observations and decisions for the next leader. Each save overwrites the
row."""

import json
import logging
import zlib
from typing import Any, Final

from kcl_dagster import aws
from kcl_dagster.application import Application
from kcl_dagster.errors import UnreadableItem
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables import coordination
from kcl_dagster.tables.attributes import ENTITY_TYPE, LEADER_MEMORY, ItemReader, s
from kcl_dagster.tables.coordination import DOCUMENT, FORMAT, MEMORY_KEY
from kcl_dagster.tables.places import TableLayout
from kcl_dagster.tables.sending import DEADLINE_SECONDS, Sender

log = logging.getLogger(__name__)

FORMAT_NUMBER: Final = 1  # JSON, deflated; a document of another format is ignored
LARGEST: Final = 380 * 1024  # bytes; DynamoDB takes 400 KB per item, including names
# Bytes after decompression. The largest document of a leader has about a tenth of this. A malicious document that
# fits into a row could decompress to 380 MB.
LARGEST_UNPACKED: Final = 4 * 1024 * 1024


class MemoryRow:
    """Loads and saves a JSON document. Two leaders may overwrite each other's documents, so a leader must not
    depend on the order of these writes."""

    def __init__(
        self,
        client: aws.Client,
        application: Application,
        layout: TableLayout,
        runtime: Runtime,
        *,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        self._sender = Sender(client, runtime, deadline_seconds)
        self._place = layout.coordinator
        self._application = application.name

    def load(self) -> dict[str, Any]:
        """Return the last document; an empty document if none can be read. Without a document, the leader only
        takes longer to decide."""
        item = self._sender.get(self._place.table, {self._place.key: s(MEMORY_KEY)})
        if item is None:
            return {}
        try:
            reader = ItemReader(item, self._place.key)
            if reader.text(ENTITY_TYPE) != LEADER_MEMORY or reader.whole(FORMAT) != FORMAT_NUMBER:
                reader.refuse(FORMAT, f"is not {FORMAT_NUMBER} of {LEADER_MEMORY}")
            document = json.loads(_unpacked(reader.blob(DOCUMENT) or b""))
        except (UnreadableItem, zlib.error, ValueError, RecursionError) as error:
            log.warning("the leader of %s starts without memory: %s", self._application, error)
            return {}
        return document if isinstance(document, dict) else {}

    def save(self, document: dict[str, Any]) -> None:
        """Save a document. Raises ValueError if it does not fit into a row."""
        packed = zlib.compress(json.dumps(document, separators=(",", ":"), sort_keys=True).encode())
        if len(packed) > LARGEST:
            msg = f"the leader's memory of {self._application} has {len(packed)} bytes, a row takes {LARGEST}"
            raise ValueError(msg)
        self._sender.overwrite(coordination.save_memory(self._place, packed, FORMAT_NUMBER))


def _unpacked(packed: bytes) -> bytes:
    """Decompress a document. Raises ValueError if the document is cut off, or larger than any document of a
    leader."""
    unpacking = zlib.decompressobj()
    document = unpacking.decompress(packed, LARGEST_UNPACKED)
    if not unpacking.eof:
        msg = f"the document is cut off, or has more than {LARGEST_UNPACKED} bytes"
        raise ValueError(msg)
    return document
