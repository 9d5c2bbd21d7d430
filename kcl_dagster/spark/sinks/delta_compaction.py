"""Compaction of a Delta table with delta-rs: merges the many small files into few large ones.

The table's log shows which files are committed. delta-rs refuses its own commit if another writer has deleted or
changed rows of the files meanwhile. But it does not refuse the commit if another compaction has replaced the files:
both commits succeed, and the table has the rows twice. So a lock prevents two compactions of one table at once, as
in a Parquet folder.
"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from kcl_dagster.chains.store import found_content
from kcl_dagster.errors import ConfigurationError, SinkError, Unsafe
from kcl_dagster.runtime import Runtime, system
from kcl_dagster.spark.sinks.delta_log import delta_options, url_of
from kcl_dagster.spark.sinks.delta_partitions import changed_columns
from kcl_dagster.spark.sinks.delta_statistics import file_writer
from kcl_dagster.spark.sinks.parquet_compaction import JOURNAL, LOCKS, TARGET_BYTES, Compaction
from kcl_dagster.spark.sinks.table_errors import table_errors
from kcl_dagster.spark.storage import S3Options, Store, open_store
from kcl_dagster.spark.store_lock import StoreLock, renewed_in_background, store_lock

if TYPE_CHECKING:
    from deltalake import DeltaTable

log = logging.getLogger(__name__)

OPTIMIZE: Final = "OPTIMIZE"
OURS: Final = "kcl-dagster/compaction"  # a key in the metadata of this package's commits
LOOKED: Final = f"{JOURNAL}/other-engines.json"
COMMIT_EVERY: Final = timedelta(minutes=5)  # if a compaction is killed, the work of at most this time is lost
COMPRESSION_LEVEL: Final = 4  # that of delta-rs's own compactions
KEPT: Final = "delta.deletedFileRetentionDuration"
_INTERVAL: Final = re.compile(r"interval \d+ (second|minute|hour|day|week)s?")  # the form that delta-rs parses
# delta-rs does not find a file whose path contains one of these texts: a tilde, or an escaped tilde.
_NOT_FOUND: Final = ("~", "%7E", "%7e")
# delta-rs's names for the settings of a connection, without the prefix `aws_`.
_SETTINGS: Final = {
    "region": "region",
    "default_region": "region",
    "endpoint": "endpoint_url",
    "endpoint_url": "endpoint_url",
    "endpoint_url_s3": "endpoint_url",
    "access_key_id": "access_key",
    "secret_access_key": "secret_key",
    "session_token": "session_token",
    "token": "session_token",
    "profile": "profile",
    "sse_kms_key_id": "kms_key",
    "iam_role_arn": "role_arn",
    "iam_role_session_name": "session_name",
}


def compact_delta(
    path: str,
    *,
    target_bytes: int = TARGET_BYTES,
    s3: S3Options | None = None,
    storage_options: Mapping[str, str] | None = None,
    runtime: Runtime | None = None,
    by: str = "a compaction",
    beside_others: bool = False,
    vacuum: bool = False,
) -> Compaction:
    """Merge the small files of the Delta table at `path`. Can run beside the consumer. Raises StoreLocked if
    another compaction is running. `by`: a name for this compaction. If another compaction begins meanwhile, its
    error contains this name.

    - `storage_options`: options of delta-rs, which replace those that are made from `s3`.
    - `vacuum`: before merging, delete files that were removed from the table longer ago than the retention of the
      table. Files that are merged remain in the folder until a later vacuum. So readers can use them until the next
      compaction, even if the retention of the table is zero.
    - `beside_others`: compact the table although another program has compacted it.

    Logs a warning and does not merge:

    - tables that another program has compacted, because two compactions at once would store rows twice. A call with
      `beside_others` ends this, until another program compacts the table again,
    - tables that are partitioned by a decimal or binary column: delta-rs changes values of such columns,
    - partitions with `~` in the path of a file: delta-rs does not find such files.
    """

    name, runtime = f"delta at {path}", runtime or system()
    with table_errors(name):
        table = open_table(path, s3 or S3Options(), storage_options)
    if table is None:
        return Compaction(0, 0, 0)
    store = open_store(path, _reached(s3 or S3Options(), storage_options))
    with store_lock(store, LOCKS, runtime, by) as lock:
        with table_errors(name), renewed_in_background(lock):
            other = _other_engine(table, store, beside_others=beside_others)
        if other is not None:
            reason = f"{name} is left alone: {other} has compacted it, and two at once would have the rows twice"
            log.warning(reason)
            return Compaction(0, 0, 0, left_alone=reason)
        deleted = _vacuum(table, name, lock) if vacuum else 0
        return replace(_compact(table, name, target_bytes, lock), deleted=deleted)


class _Looked(msgspec.Struct, frozen=True):
    """The result of the search for compactions by other programs. `version`: the last version of the table that was
    searched. `other`: the program that was found."""

    version: int
    other: str | None = None


def _other_engine(table: "DeltaTable", store: Store, *, beside_others: bool) -> str | None:
    """The other program that has compacted the table, or None. The result is stored in a file, because the log of
    the table keeps commits for a limited time."""
    content = found_content(store, LOOKED)
    looked = _Looked(-1) if content is None else _decoded(content, f"{store.root}/{LOOKED}")
    version = table.version()
    if beside_others:
        looked = _Looked(version)
    elif looked.other is None and looked.version < version:
        commits = table.history(None if looked.version < 0 else version - looked.version)
        looked = _Looked(version, next(filter(None, map(_engine_of_compaction, commits)), None))
    store.put(LOOKED, msgspec.json.encode(looked))
    return looked.other


def _decoded(content: bytes, path: str) -> _Looked:
    try:
        return msgspec.json.decode(content, type=_Looked)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Unsafe(
            f"{path} cannot be read, so it is not known whether another program has compacted the table: {error}. "
            "Remove the file; then the log of the table is searched again"
        ) from error


def _engine_of_compaction(commit: Mapping[str, Any]) -> str | None:
    """The program that has made a compaction. None if the commit is not a compaction, or if this package has made
    it."""
    if commit.get("operation") != OPTIMIZE or OURS in commit:
        return None
    return str(commit.get("engineInfo") or commit.get("clientVersion") or "another engine")


def _vacuum(table: "DeltaTable", name: str, lock: StoreLock) -> int:
    """Vacuum the table. Returns the number of deleted files. Files that never belonged to the table, such as staged
    files, are not deleted."""
    lock.extend()
    with table_errors(name), renewed_in_background(lock):
        table.update_incremental()
        kept = table.metadata().configuration.get(KEPT)
        if kept is not None and _INTERVAL.fullmatch(kept) is None:
            raise ConfigurationError(f"{KEPT} is {kept!r}, which delta-rs takes for a week: nothing was deleted")
        return len(table.vacuum(dry_run=False)) if table.vacuum(dry_run=True) else 0


def _compact(table: "DeltaTable", name: str, target_bytes: int, lock: StoreLock) -> Compaction:
    with table_errors(name):
        table.update_incremental()  # an earlier compaction may have committed before this one got the lock
        unsuitable = changed_columns(pa.schema(table.schema().to_arrow()), table.metadata().partition_columns)
        not_found = _not_found(table, target_bytes)
        partitions: Sequence[Mapping[str, str | None]] = (
            table.partitions() if table.metadata().partition_columns else []
        )
    if unsuitable:
        log.warning("%s is left alone: delta-rs changes values of the partition columns %s", name, unsuitable)
        return Compaction(0, 0, 0)
    if not not_found:
        try:
            return _optimized(table, name, target_bytes, lock)
        except SinkError as error:
            if not partitions:
                raise
            log.warning("%s is compacted partition by partition, because as a whole it failed: %s", name, error)
    elif not partitions:
        log.warning("%s is left alone: delta-rs does not find its file %s", name, not_found[0])
    merged = into = size = 0
    failed = []
    for partition in partitions:
        conditions = [(column, "=", "" if value is None else value) for column, value in partition.items()]
        try:
            with table_errors(name):
                table.update_incremental()
            done = _optimized(table, name, target_bytes, lock, conditions)
        except SinkError as error:
            if not_found and "missing files" in str(error):
                log.warning("%s: the partition %s is left alone, delta-rs does not find its files", name, partition)
                continue
            log.warning("%s: the partition %s could not be compacted: %s", name, partition, error)
            failed.append(f"the partition {partition}: {error}")
        else:
            merged, into, size = merged + done.merged, into + done.into, size + done.bytes
    return Compaction(merged, into, size, failed=tuple(failed))


def _optimized(
    table: "DeltaTable",
    name: str,
    target_bytes: int,
    lock: StoreLock,
    conditions: Sequence[tuple[str, str, Any]] | None = None,
) -> Compaction:
    """Let delta-rs merge the files of the table, or of the partitions that match `conditions`. delta-rs cannot be
    interrupted, so the lock is checked afterwards. Raises Unsafe if the lock was lost and files were merged."""
    from deltalake import CommitProperties

    lock.extend()
    before = table.version()
    with table_errors(name), renewed_in_background(lock):
        done = table.optimize.compact(
            None if conditions is None else list(conditions),
            target_size=target_bytes,
            min_commit_interval=COMMIT_EVERY,
            writer_properties=file_writer(pa.schema(table.schema().to_arrow()), COMPRESSION_LEVEL),
            commit_properties=CommitProperties(custom_metadata={OURS: lock.by}),
        )
    if int(done["numFilesRemoved"]) and not lock.is_mine():
        raise Unsafe(
            f"{name}: {lock.by} was paused so long that another one may have merged the same files: compare the "
            f"number of rows with that of version {before}, and restore that version if rows are there twice"
        )
    added = json.loads(done["filesAdded"]) if isinstance(done["filesAdded"], str) else done["filesAdded"]
    return Compaction(int(done["numFilesRemoved"]), int(done["numFilesAdded"]), int(added["totalSize"]))


def _not_found(table: "DeltaTable", target_bytes: int) -> list[str]:
    """The paths, relative to the table, of small files that delta-rs would have to merge, but does not find."""
    files = pa.table(table.get_add_actions())
    paths = zip(files.column("path").to_pylist(), files.column("size_bytes").to_pylist(), strict=True)
    return [path for path, size in paths if size <= target_bytes and any(text in path for text in _NOT_FOUND)]


def _reached(s3: S3Options, storage_options: Mapping[str, str] | None) -> S3Options:
    """The options for the store of the lock. The lock is beside the table, so the options with which delta-rs
    reaches the table take precedence."""
    settings = {}
    for name, value in (storage_options or {}).items():
        known = _SETTINGS.get(name.lower().removeprefix("aws_"))
        if known is not None:
            settings[known] = value
    return S3Options(**{"region": s3.region} | settings) if settings else s3


def open_table(path: str, s3: S3Options, storage_options: Mapping[str, str] | None = None) -> "DeltaTable | None":
    """Open the Delta table at `path` with the options of a sink. Returns None if there is no table."""
    from deltalake import DeltaTable

    url, options = url_of(open_store(path, s3).root), dict(storage_options or delta_options(s3))
    return DeltaTable(url, storage_options=options) if DeltaTable.is_deltatable(url, options) else None
