"""Take over the leases of a KCL 1.x or 2.x fleet, once, after it was stopped."""

from kcl_dagster.application import Application
from kcl_dagster.aws import Client
from kcl_dagster.errors import ConfigurationError, Unsafe
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables.audit import AuditTable
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.places import TableLayout
from kcl_dagster.tables.table_layout import create_tables, detect_layout


def take_over_2x(
    application: Application,
    dynamodb: Client,
    runtime: Runtime,
    by: str,
    *,
    workers_are_stopped: bool,
    dry: bool = False,
) -> TableLayout:
    """Record that the application uses the 3.x protocol from now on. No lease is changed.

    First, its leases are watched for a lease duration. If a lease is renewed, a worker is still running. Raises the
    following, before anything is changed:

    - Unsafe if a worker may still run,
    - LayoutRefused if the tables do not allow the takeover,
    - ConfigurationError if there is nothing to take over.
    """
    if not workers_are_stopped:
        raise Unsafe(
            f"stop all workers of {application.name} first, then say so with --workers-are-stopped: a worker of "
            "KCL 2.x that still runs would take leases from ours"
        )
    layout = detect_layout(dynamodb, application, runtime, take_over_2x=True)
    if not layout.take_over:
        raise ConfigurationError(f"application {application.name} has nothing to take over: start its leader")
    leases = LeaseTable(dynamodb, application, layout, runtime)
    before = {lease.key: lease.counter for lease in leases.scan().leases}
    runtime.clock.sleep(application.timings.lease_duration)
    moved = [lease for lease in leases.scan().leases if before.get(lease.key) != lease.counter]
    if moved:
        raise Unsafe(f"{moved[0].actual_owner or 'a worker'} still writes lease {moved[0].key}: stop that worker")
    if not dry:
        create_tables(dynamodb, application, layout, runtime)
        AuditTable(dynamodb, application, layout, runtime).write(
            "take-over-2x", by, {"leases": len(before), "said": layout.stored_version}
        )
    return layout
