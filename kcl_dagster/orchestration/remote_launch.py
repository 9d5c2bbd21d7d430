"""The Dagster side of a bounded run in a Spark driver elsewhere. It launches the driver and reads the driver's
report.

A function of the user starts the driver, with a Pipes client of the user's choice. When the driver has ended, the
Dagster run carries out the tasks that need Dagster's own storage, such as declaring windows.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from dagster import Failure, OpExecutionContext, PipesClientCompletedInvocation

from kcl_dagster.orchestration.bounded_outcome import BoundedOutcome, leads_again, open_bounded_leader
from kcl_dagster.orchestration.consumer import Consumer, parameters_after_first
from kcl_dagster.orchestration.remote_report import APPLICATION, THROUGH, our_versions, read_report
from kcl_dagster.orchestration.resources import KclResource
from kcl_dagster.orchestration.run_event_log import writer_of
from kcl_dagster.orchestration.run_storage import run_view
from kcl_dagster.runtime import system

Launch = Callable[..., PipesClientCompletedInvocation]
"""Starts a driver that runs `kcl-dagster catch-up MODULE:ATTRIBUTE --pipes`, and waits for its end. The first
two parameters are the context and the extras, which the function passes to the `run` of a Pipes client; it
returns the result of that `run`. Further parameters are Dagster resources with these names. The function must make
a new message reader for the client at each call, because readers such as `PipesS3MessageReader` serve only one run.
"""


def resources_of(launch: Launch) -> frozenset[str]:
    return frozenset(parameters_after_first(launch)[1:])


def read_elsewhere(
    context: OpExecutionContext, consumer: Consumer, kcl: KclResource, launch: Launch, through: float | None
) -> tuple[BoundedOutcome, Mapping[str, Any]]:
    """Carry out a bounded run in the driver that `launch` starts. Returns its outcome and the metadata of the Pipes
    client.

    Raises Failure if the driver reports a problem, ends without a report, or reports an outcome that this version
    cannot read. Raises the errors of the Pipes client.
    """
    application, run_id = consumer.application, context.run.run_id
    given = {name: getattr(context.resources, name) for name in resources_of(launch)}
    invocation = launch(context, {APPLICATION: application.name, THROUGH: through}, **given)
    report = read_report(invocation.get_custom_messages())
    if report.unread:
        context.log.warning(
            "%s: %d of the driver's events cannot be read here and are left out: the driver has %s, and this "
            "process has %s. The first error: %s",
            application.name,
            len(report.unread),
            report.versions,
            our_versions(),
            report.unread[0],
        )
    write = writer_of(context)
    for event in report.events:
        write(event)
    about = dict(invocation.metadata)
    if report.outcome is None:
        problem = report.problem or (
            "the driver ended without a report: look at its own log, at whether it runs kcl-dagster catch-up with "
            "--pipes, and at whether it may write to the place from which the message reader of the Pipes client "
            "reads. The reader must be new: a reader that has served one run receives nothing from a second run"
        )
        raise Failure(f"{application.name}: {problem}", metadata=about, allow_retries=False)
    if not report.led:
        return report.outcome, about
    view = partial(run_view, context.instance, application)
    leader = open_bounded_leader(application, kcl, run_id, system())
    return replace(
        report.outcome, leading=partial(leads_again, leader, lambda: replace(view(), launches=False))
    ), about
