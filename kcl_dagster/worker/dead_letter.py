"""Dead letters: records that user code could not process, stored so that they can be processed again.

Each record is one JSON file, `<path>/<application>/<stream>/<shard>/<sequence>-<sub-sequence>.json`. The name
depends only on the record's position in the stream, so a record that is written twice is stored once.
"""

from base64 import b64encode
from collections.abc import Callable
from typing import Protocol, Self

import msgspec

from kcl_dagster.errors import SinkError
from kcl_dagster.worker.batch import Part, PoisonRecord
from kcl_dagster.worker.error_text import full, kind_of, text_of

FORMAT_VERSION = 1


class DeadLetter(msgspec.Struct, frozen=True):
    """A record that could not be processed, with all data that is needed to process it again, and to understand why
    it failed.

    `data` is base64. While the stream keeps the record, `sequence_number` and `sub_sequence_number` show where it
    is.

    Example:
        .. code-block:: python

            def failed_with(content: bytes) -> str:
                return kcl.DeadLetter.from_json(content).error
    """

    version: int
    application: str
    stream: str
    shard_id: str
    sequence_number: str
    sub_sequence_number: int
    partition_key: str
    explicit_hash_key: str | None
    arrival_ms: int | None
    data: str
    batch_number: int
    worker: str
    attempts: int
    failed_at_ms: int
    error_type: str
    error: str

    @property
    def name(self) -> str:
        """The path of the file, relative to the path for dead letters in the failure policy."""
        stream = self.stream.replace(":", "_")
        file = f"{self.sequence_number}-{self.sub_sequence_number}.json"
        return f"{self.application}/{stream}/{self.shard_id}/{file}"

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Parse a dead letter. Raises ValueError if the text is not a dead letter."""
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            msg = f"not a dead letter: {error}"
            raise ValueError(msg) from error


def dead_letter(
    record: PoisonRecord, part: Part, *, worker: str, attempts: int, failed_at_ms: int, error: BaseException
) -> DeadLetter:
    return DeadLetter(
        version=FORMAT_VERSION,
        application=part.application,
        stream=str(part.stream),
        shard_id=part.shard_id,
        sequence_number=record.sequence_number,
        sub_sequence_number=record.sub_sequence_number,
        partition_key=record.partition_key,
        explicit_hash_key=record.explicit_hash_key,
        arrival_ms=record.arrival_ms,
        data=b64encode(record.data).decode(),
        batch_number=part.number,
        worker=worker,
        attempts=attempts,
        failed_at_ms=failed_at_ms,
        error_type=kind_of(error),
        error=full(error),
    )


class DeadLetters(Protocol):
    def write(self, letter: DeadLetter) -> None:
        """Store the letter durably before returning. Storing the same letter again has no effect. Raises
        SinkError."""


class NoDeadLetters:
    """Refuses every letter. For applications whose failure policy has no path for dead letters."""

    def write(self, letter: DeadLetter) -> None:
        raise SinkError(f"there is no place for dead letters, so {letter.name} could not be stored")


class FiledDeadLetters:
    """Stores dead letters as files. `put` stores one file durably under a path, and can replace an equal file."""

    def __init__(self, put: Callable[[str, bytes], None]) -> None:
        self._put = put

    def write(self, letter: DeadLetter) -> None:
        try:
            self._put(letter.name, letter.to_json())
        except Exception as error:
            # Every error becomes a SinkError, so that it concerns only the shard of the record, and not the
            # worker's other shards.
            raise SinkError(f"dead letter {letter.name} could not be stored: {text_of(error)}") from error
