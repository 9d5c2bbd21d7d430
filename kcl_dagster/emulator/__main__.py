"""`python -m kcl_dagster.emulator`: the embedded AWS as a process."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import psutil

from kcl_dagster.emulator import extra, watch
from kcl_dagster.emulator.embedded import LOOPBACK
from kcl_dagster.emulator.kinesis import Limits
from kcl_dagster.emulator.kinesis.service import DEFAULT_REGION

WATCH_SECONDS = 0.5
EXIT_FAILED = 2
LARGEST_PORT = 65_535


def main(arguments: list[str] | None = None, prog: str = "python -m kcl_dagster.emulator") -> int:
    """Run the emulator until it is stopped, and return an exit code. `prog` is the command name shown in the
    help."""
    options = parser(prog).parse_args(arguments)
    try:
        extra.require()
    except extra.ExtraMissingError as error:
        return _fail(str(error))
    # A process that a shell starts in the background ignores Ctrl-C. This call makes it react to Ctrl-C again.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C before the event loop handles it
        return asyncio.run(_run(options))
    return 0


async def _run(options: argparse.Namespace) -> int:
    from kcl_dagster.emulator.node import Node

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    limits = Limits.none() if options.no_limits else Limits.aws()
    node = Node(limits, time.time, options.seed, options.region, options.transition_seconds)
    try:
        endpoint = await node.start(options.host, options.port)
    except OSError as error:
        await node.close()
        return _fail(f"cannot listen on {options.host}:{options.port}: {_reason(error)}")
    print(endpoint, flush=True)
    if options.ready_file is not None:
        _announce(options.ready_file, endpoint, options.region)
    watching = None
    if options.watch_pid is not None:
        watched = watch.find(options.watch_pid, options.watch_started)
        watching = loop.create_task(_watch(watched, options.grace_seconds, stop))
    await stop.wait()
    if watching is not None:
        watching.cancel()
    if options.ready_file is not None:
        options.ready_file.unlink(missing_ok=True)
    await node.close()
    return 0


async def _watch(process: psutil.Process | None, grace_seconds: float, stop: asyncio.Event) -> None:
    """Set `stop` when `process` has ended and `grace_seconds` more have passed. In these seconds, processes that
    `process` started can finish their last requests."""
    while process is not None and watch.lives(process):
        await asyncio.sleep(WATCH_SECONDS)
    await asyncio.sleep(grace_seconds)
    stop.set()


def _announce(ready_file: Path, endpoint: str, region: str) -> None:
    """Write the ready file in one step, so that no process reads half of it."""
    partial = ready_file.with_name(f"{ready_file.name}.{os.getpid()}")
    pid = os.getpid()
    facts = {"endpoint": endpoint, "pid": pid, "started": watch.started(pid), "region": region}
    partial.write_text(json.dumps(facts))
    partial.replace(ready_file)


def _reason(error: OSError) -> str:
    # asyncio adds a sentence to the error text of the system, so the text is made from the errno. If the look-up of
    # the host fails, there is no errno.
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror or error)


def _fail(reason: str) -> int:
    print(f"kcl_dagster.emulator: {reason}", file=sys.stderr)
    return EXIT_FAILED


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= LARGEST_PORT:
        raise argparse.ArgumentTypeError(f"{text} is not a port, which is 0 to {LARGEST_PORT}")
    return port


def parser(prog: str) -> argparse.ArgumentParser:
    """Return the parser of the command-line options."""
    made = argparse.ArgumentParser(
        prog=prog,
        description="An embedded AWS (Kinesis, DynamoDB, S3, STS) on one local port. It keeps nothing on disk.",
    )
    made.add_argument("--host", default=LOOPBACK, help="address to listen on (default %(default)s)")
    made.add_argument("--port", type=_port, default=0, help="port to listen on (default: any free one)")
    made.add_argument("--ready-file", type=Path, help="JSON with endpoint and pid, written once it listens")
    made.add_argument("--watch-pid", type=int, help="end when this process has ended")
    made.add_argument("--watch-started", type=float, help="when that started, in epoch seconds")
    made.add_argument("--grace-seconds", type=float, default=5.0, help="how long after it (default %(default)s)")
    made.add_argument("--no-limits", action="store_true", help="no throttling, iterators do not expire")
    made.add_argument("--region", default=DEFAULT_REGION, help="the region to play (default %(default)s)")
    made.add_argument("--seed", type=int, default=0, help="of the randomness of faults (default %(default)s)")
    made.add_argument(
        "--transition-seconds",
        type=float,
        default=0.0,
        help="how long streams stay CREATING, UPDATING, DELETING (default %(default)s)",
    )
    return made


if __name__ == "__main__":
    sys.exit(main())
