"""What can go wrong in a simulated fleet, one kind a line."""

from dataclasses import dataclass
from enum import StrEnum


class FaultKind(StrEnum):
    """What can go wrong. `target` says to whom: "worker", "daemon" or "any"; a number picks one of them."""

    # processes
    KILL = "kill"
    KILL_AT_CALL = "kill at call"  # in the midst of whatever it does
    PAUSE = "pause"
    PAUSE_AT_CALL = "pause at call"  # in the midst of whatever it does
    PAUSE_AFTER_CALL = "pause after call"  # that took effect, and before its answer is used
    SUSPEND = "suspend"  # its monotonic clock stands still too
    TERMINATE = "terminate"  # asked to stop, killed a little later
    JUMP = "jump"  # of the wall clock
    # the orchestrator
    RUN_FAILED_BUT_ALIVE = "run failed but alive"
    SECOND_RUN = "second run"  # of a slot that has one
    REPLAYED_TICK = "replayed tick"  # an old tick's requests are made again
    STUCK_QUEUE = "stuck queue"  # runs that are asked for wait
    SKIPPED_TICKS = "skipped ticks"  # no daemon does anything for long
    OUTAGE = "outage"  # the whole fleet stands still for longer than the streams keep records
    # what is remembered
    LOSE_MEMORY = "lose memory"
    REPLAY_MEMORY = "replay memory"
    DELETE_LEASE = "delete lease"
    DELETE_ROW = "delete worker row"
    # the way to a service
    THROTTLED = "throttled"
    BROKEN = "broken"  # error 500
    UNREACHABLE = "unreachable"
    REQUEST_LOST = "request lost"
    ANSWER_LOST = "answer lost"
    CUT_OFF = "cut off"  # an answer arrives in part
    DRIPS = "drips"  # an answer arrives byte by byte, until the caller gives up by the clock
    LATE = "late"  # takes effect after the caller gave up
    DENIED = "denied"  # one operation of one service
    WRITES_SLOW = "writes slow"  # by which one worker keeps its leases: served, and long under way
    CUT = "cut"  # one process from one service: nothing gets there, or no answer gets back
    TRANSACTION_CONFLICT = "transaction conflict"  # another request is writing one of the rows
    HALF_RIGHTS = "half rights"  # one operation is denied to all leaders of a deployment
    STALE_INDEX = "stale index"  # the owners' index is far behind its table
    # the stream
    SPLIT = "split"
    MERGE = "merge"
    RESHARD_STORM = "reshard storm"
    DOUBLE_SPLIT = "double split"  # children are split before anybody has read them
    QUIET = "quiet"  # no records come in for a while
    RETENTION_SHORTENED = "retention shortened"  # to a day
    RECREATED = "recreated"  # deleted, and created anew under its name
    ITERATORS_EXPIRE = "iterators expire"
    EMPTY_PAGES = "empty pages"  # far from the tip
    NEVER_AT_TIP = "never at the tip"  # the stream says that there is more to come, and there is not
    NO_CHILDREN_NAMED = "no children named"  # by the last page of a closed shard
    # the sink
    SINK_REFUSES = "sink refuses"
    SINK_LIES = "sink lies"  # stores and says it did not
    SINK_SLOW = "sink slow"
    # Dagster's database, as one deployment meets it
    FOREIGN_QUEUE = "foreign queue"  # of one deployment, no run leaves the queue
    STORAGE_SLOW = "storage slow"
    STORAGE_HANGS = "storage hangs"
    STORAGE_RAISES = "storage raises"
    # user code
    CODE_HANGS = "code hangs"  # on the batch thread of one worker, whose other threads go on
    CODE_HANGS_APART = "code hangs apart"  # its worker is cut off meanwhile, and then all others end
    CODE_FAILS = "code fails"
    DEPLOYED = "deployed"  # another version of it; no worker of the former one is left
    UPGRADED = "upgraded"  # from batches in leases to batches in chains
    LEASE_DURATION = "lease duration"  # another one is deployed; then there is no leader for a while
    # operators
    TABLE_LOST = "table lost"  # the lease table is made anew, beside the lake as it is
    FLEET_DRAINED = "fleet drained"  # all workers are asked to leave at once
    RESET = "reset"  # the application is paused, put to another position, and resumed
    TABLE_REMADE = "table remade"  # in a pause; or the plans of its commits are removed


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong. `seconds` and `share` matter to those that last, `number` to those that count."""

    id: int
    kind: FaultKind
    at: float
    target: str = "worker"
    number: int = 0
    seconds: float = 0.0
    share: float = 1.0
    service: str = ""
    operation: str = ""

    def __str__(self) -> str:
        parts = [f"#{self.id} {self.kind} at {self.at:.1f}"]
        if self.target:
            parts.append(f"{self.target} {self.number}")
        if self.seconds:
            parts.append(f"for {self.seconds:.1f} s")
        if self.share < 1:
            parts.append(f"of {self.share:.0%}")
        if self.service:
            parts.append(f"{self.service} {self.operation or 'all'}")
        return ", ".join(parts)
