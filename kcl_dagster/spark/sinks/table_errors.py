"""A context for errors of table libraries."""

from collections.abc import Iterator
from contextlib import contextmanager

from kcl_dagster.errors import KclError
from kcl_dagster.spark.failures import of_table
from kcl_dagster.worker.processing_watch import uninterrupted


@contextmanager
def table_errors(table: str) -> Iterator[None]:
    """Map the errors of a table's own library; see `spark.failures.of_table`. No code of the consumer runs in
    it, so `batch.max_process_seconds` does not interrupt it."""
    try:
        with uninterrupted():
            yield
    except KclError:
        raise
    except Exception as error:
        raise of_table(table, error) from error
