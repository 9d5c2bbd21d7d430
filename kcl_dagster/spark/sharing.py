"""Checks at the start of a worker whether the driver can read the files that executors store in a local
directory."""

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kcl_dagster.errors import ConfigurationError, KclError
from kcl_dagster.spark.engine import local_slots
from kcl_dagster.spark.failures import first_line
from kcl_dagster.spark.row_types import row_type
from kcl_dagster.spark.session_kind import is_classic
from kcl_dagster.spark.storage import LocalStore, Store

FOLDER: Final = "_sharing"  # readers ignore names that begin with an underscore
PROBES: Final = 16  # tasks; an executor's first task takes a second, so each executor of a small cluster gets one
HOSTS_NAMED: Final = 5

_PROBES: Final = pa.schema([("host", pa.string()), ("path", pa.string()), ("problem", pa.string())])


@dataclass(frozen=True, slots=True)
class SharingProbe:
    """A file that an executor has written, or the reason why the executor could not write it (`problem`). The
    content of the file is its path."""

    host: str
    path: str
    problem: str | None = None


def check_sharing(spark: SparkSession, store: Store | None, name: str) -> None:
    """Raise ConfigurationError if the store is a local directory and the driver does not find all files that
    executors write there. `name`: the prefix of the names of the probe files. No other file may have this prefix.

    Runs one small job if executors can be on other machines. Executors that are added later are not checked.
    """
    try:
        wrong = why_not_shared(spark, store, name)
    except (PySparkException, Py4JError) as error:
        place = "the sink" if store is None else store.root
        raise ConfigurationError(f"executors cannot write below {place}: {first_line(error)}") from error
    if wrong is not None:
        raise ConfigurationError(wrong)


def why_not_shared(spark: SparkSession, store: Store | None, name: str) -> str | None:
    """The text of the problem that `check_sharing` raises, or None. Raises Spark's error if the job fails."""
    if not isinstance(store, LocalStore) or (is_classic(spark) and local_slots(spark) is not None):
        return None
    tasks = spark.range(0, PROBES, 1, PROBES)
    rows = tasks.mapInArrow(_WriteProbes(store, name), row_type(_PROBES)).collect()
    probes = [SharingProbe(row.host, row.path, row.problem) for row in rows]
    wrong = what_is_wrong(store.root, probes, lambda probe: _is_seen(store, probe))
    with suppress(OSError):  # readers ignore remaining files
        # The folder is listed, because attempts whose result did not reach the driver have written probes, too.
        store.delete([file.path for file in store.files(f"{FOLDER}/{name}.", hidden=True)])
    return wrong


def what_is_wrong(root: str, probes: Sequence[SharingProbe], is_seen: Callable[[SharingProbe], bool]) -> str | None:
    """The text of the problem, with its remedy; None if there is no problem."""
    for probe in probes:
        if probe.problem is not None:
            return f"the executor on {probe.host} cannot write below {root}: {probe.problem}. {_WHAT_TO_DO}"
    hosts = sorted({probe.host for probe in probes if not is_seen(probe)})
    if not hosts:
        return None
    named = ", ".join(hosts[:HOSTS_NAMED]) + (
        f" and {len(hosts) - HOSTS_NAMED} more" if hosts[HOSTS_NAMED:] else ""
    )
    return (
        f"the driver on {socket.gethostname()} does not see what executors on {named} store below {root}: it is "
        f"another directory there, and records would be lost. {_WHAT_TO_DO}"
    )


_WHAT_TO_DO: Final = (
    "Give the sink s3://bucket/prefix, or a directory that the driver and all executors mount at the same path"
)


def _is_seen(store: LocalStore, probe: SharingProbe) -> bool:
    """Whether the driver finds the file with its content. The file is opened by its name instead of listed. To open
    a file, a network file system sends a request to its server, but a listing of the folder can be outdated."""
    try:
        return store.get(probe.path) == probe.path.encode()
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class _WriteProbes:
    """The function for `mapInArrow` that writes a probe file for each row."""

    store: LocalStore
    name: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            probes = [self._write(number) for number in batch.column(0).to_pylist()]
            yield pa.RecordBatch.from_pylist([asdict(probe) for probe in probes], schema=_PROBES)

    def _write(self, number: int) -> SharingProbe:
        host, path = socket.gethostname(), f"{FOLDER}/{self.name}.{number}.{os.getpid()}.probe"
        try:
            self.store.put(path, path.encode())
        except (OSError, KclError) as error:
            return SharingProbe(host, path, str(error))
        return SharingProbe(host, path)
