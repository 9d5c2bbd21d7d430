"""A context for errors of table libraries."""

from collections.abc import Iterator
from contextlib import contextmanager

from kcl_dagster.errors import KclError
from kcl_dagster.spark.failures import of_table
from kcl_dagster.worker.processing_watch import uninterrupted


@contextmanager
def table_errors(table: str) -> Iterator[None]:
    """A context that maps errors of the library of a table format; see `spark.failures.of_table`. No code of the
    consumer runs in this context, so `batch.max_process_seconds` does not interrupt it."""
    try:
        with uninterrupted():
            yield
    except KclError:
        raise
    except Exception as error:
        raise of_table(table, error) from error
