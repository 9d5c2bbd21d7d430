"""Errors of the libraries of tables."""

from collections.abc import Iterator
from contextlib import contextmanager

from kcl_dagster.errors import KclError
from kcl_dagster.spark.failures import of_table
from kcl_dagster.worker.processing_watch import uninterrupted


@contextmanager
def table_errors(table: str) -> Iterator[None]:
    """For what a table's own library does; see `spark.failures.of_table`. No code of the consumer runs in there, so
    `batch.max_process_seconds` interrupts nothing of it."""
    try:
        with uninterrupted():
            yield
    except KclError:
        raise
    except Exception as error:
        raise of_table(table, error) from error
