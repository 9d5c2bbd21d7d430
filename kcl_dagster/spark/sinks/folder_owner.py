"""Which application may use the file names of version 0.1 in a folder.

Version 0.1 named files by lease, place and number alone, and leases that it made keep such names. Two applications
with such leases would replace each other's files in one folder. So the first one that stores under such a name
leaves a file with its own name there, and others are refused. Leases of this version have names of their own.
"""

from typing import Final

from kcl_dagster.aws import RequestRefused
from kcl_dagster.errors import SinkError
from kcl_dagster.spark.storage import NOT_THERE, Store

OWNER_FILE: Final = "_kcl_dagster_application"  # readers pass over names that begin with an underscore


def claim(store: Store, application: str) -> None:
    """Take the names of version 0.1 for an application. At most one of several concurrent callers succeeds.

    Raises SinkError if another application has them.
    """
    try:
        is_new = store.put_new(OWNER_FILE, application.encode())
        owner = application if is_new else owner_of(store)
    except OSError as error:
        raise SinkError(f"parquet at {store.root}: {OWNER_FILE} could not be written: {error}") from error
    if owner not in (application, None):
        raise SinkError(
            f"parquet at {store.root}: version 0.1 made leases of {application} and of {owner}, whose files would "
            f"replace each other here. Give {application} a folder of its own; or, if {owner} stores here no more, "
            f"delete {OWNER_FILE}"
        )


def owner_of(store: Store) -> str | None:
    """The application that has the names of version 0.1; None if none has. Raises OSError and errors of AWS."""
    try:
        return bytes(store.get(OWNER_FILE)).decode(errors="replace")
    except FileNotFoundError:
        return None
    except RequestRefused as error:
        if error.code not in NOT_THERE:
            raise
        return None
