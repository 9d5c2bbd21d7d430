"""Adds files to a Delta table with delta-rs, after executors have written them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from kcl_dagster.chains.entry import PublishingEntry
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.sinks.delta_log import LOG_RETRIES
from kcl_dagster.spark.sinks.delta_rules import DeltaRules

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties

# The log is cleaned with every hundredth commit. delta-rs makes a checkpoint equally often, and deletes no file of
# the log without a checkpoint.
COMMITS_TO_CLEANING: Final = 100


def append(
    table: "DeltaTable",
    rules: DeltaRules,
    runtime: Runtime,
    entries: Sequence[PublishingEntry],
    properties: "CommitProperties",
    hooks: "PostCommitHookProperties",
) -> None:
    """Add the files of the entries in one commit. The commit is made even if there are no files. Errors of delta-rs
    are raised."""
    from deltalake.transaction import AddAction

    now = round(runtime.clock.now() * 1000)
    table.create_write_transaction(
        [
            AddAction(file.path, file.bytes, dict(file.partition or {}), now, True, file.statistics or "{}")
            for entry in entries
            for file in entry.files
        ],
        "append",
        table.schema(),
        partition_by=list(rules.partition_columns) or None,
        commit_properties=properties,
        post_commithook_properties=hooks,
    )


def commit_properties(transactions: Mapping[str, int], metadata: Mapping[str, str]) -> "CommitProperties":
    """The properties of a commit. `transactions`: the versions that the commit writes into the table's transaction
    log, by the ids of their applications. If two concurrent commits write versions of the same application, the
    later one is refused."""
    from deltalake import CommitProperties, Transaction

    return CommitProperties(
        custom_metadata=dict(metadata),
        app_transactions=[Transaction(name, version) for name, version in transactions.items()],
        max_commit_retries=LOG_RETRIES,
    )


def cleaning(number: int) -> "PostCommitHookProperties":
    """The settings by which delta-rs removes old files of the log after the commit `number`. Only every hundredth
    commit removes files, because delta-rs lists the whole log for it. In that commit, the table's own setting
    decides whether files are removed."""
    from deltalake import PostCommitHookProperties

    return PostCommitHookProperties(cleanup_expired_logs=None if number % COMMITS_TO_CLEANING == 0 else False)
