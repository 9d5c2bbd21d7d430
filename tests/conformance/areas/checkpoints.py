"""Checkpoint values, their order, and where a processor may checkpoint."""

import re
from functools import cmp_to_key

from kcl_dagster.model.checkpoint import SHARD_END, Checkpoint
from kcl_dagster.worker.checkpointer import Checkpointer, PreparedCheckpoint
from tests.conformance.agreement import AtLeast, Observed
from tests.conformance.case import Given, NotUnderstood
from tests.conformance.registry import area


def checkpoint_of(value: object) -> Checkpoint:
    """`"17"`, `17`, `["17", 0]`, `["17", null]` or `{"sequence_number": ..., "sub_sequence_number": ...}`."""
    if isinstance(value, str):
        return Checkpoint(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return Checkpoint(str(value))
    if isinstance(value, list) and 1 <= len(value) <= 2:
        sub = value[1] if len(value) == 2 else None
        return Checkpoint(str(value[0]), int(sub or 0))
    if isinstance(value, dict):
        pair = Given(value, "checkpoint")
        return Checkpoint(
            pair.text("sequence_number", "sequence", "seq"),
            int(pair.number("sub_sequence_number", "sub", default=0)),
        )
    raise NotUnderstood(f"{value!r} is no checkpoint")


def pair(checkpoint: Checkpoint) -> list[object]:
    return [checkpoint.sequence, checkpoint.sub_sequence]


@area("checkpoint.order")
def order(given: Given) -> Observed:
    if "values" in given:
        subs = given.sequence("sub_sequence_numbers", default=[0])
        every = [checkpoint_of([value, sub]) for value in given.sequence("values") for sub in subs]
        return {
            "is_sentinel": _one_answer([c.is_sentinel for c in every]),
            "is_shard_end": _one_answer([c.is_shard_end for c in every]),
        }
    if "unordered" in given:
        every = [checkpoint_of(value) for value in given.sequence("unordered")]
        ascending = sorted(every, key=cmp_to_key(Checkpoint.compare))
        if ascending != sorted(every):
            raise AssertionError("compare and < disagree")
        return {
            "ascending": [pair(c) for c in ascending],
            "descending": [pair(c) for c in reversed(ascending)],
            "max": pair(ascending[-1]),
            "min": pair(ascending[0]),
        }
    if "a" in given:
        a, b = checkpoint_of(given["a"]), checkpoint_of(given["b"])
        return {"compare": a.compare(b), "equals": a == b, "a_before_b": a < b, "less": a < b}
    sequence = given.text("sequence_number", "value", "sequence")
    one = checkpoint_of([sequence, given.first("sub_sequence_number", "sub", default=None)])
    return {
        "sequence_number": one.sequence,
        "sub_sequence_number": one.sub_sequence,
        "is_sentinel": one.is_sentinel,
        "is_shard_end": one.is_shard_end,
    }


def _one_answer(answers: list[bool]) -> object:
    return answers[0] if len(set(answers)) == 1 else answers


class _Stored:
    """The lease's checkpoint, as its table would keep it."""

    def __init__(self, checkpoint: Checkpoint | None) -> None:
        self.stored = checkpoint
        self.pending: Checkpoint | None = None
        self.writes: list[Checkpoint] = []
        self.prepared: list[Checkpoint] = []

    def checkpoint(self, checkpoint: Checkpoint) -> None:
        self.stored, self.pending = checkpoint, None
        self.writes.append(checkpoint)

    def prepare(self, pending: Checkpoint, state: bytes | None) -> None:
        del state
        self.pending = pending
        self.prepared.append(pending)


def _text(checkpoint: Checkpoint | None) -> str | None:
    return None if checkpoint is None else checkpoint.sequence


def _result(checkpointer: Checkpointer, at: Checkpoint | None) -> None:
    checkpointer.checkpoint(at)


@area("checkpointer")
def checkpointer(given: Given) -> Observed:
    if "plan" in given:
        return _plan(given)
    last = checkpoint_of(given["last"]) if given.has("last") else None
    largest = checkpoint_of(given["largest"]) if given.has("largest") else None
    stored = _Stored(last)
    processor = Checkpointer(stored, last=last, largest=largest)
    if given.has("sequence_at_shard_end"):
        processor.last_sequence = checkpoint_of(given["sequence_at_shard_end"])
    if "prepare" in given:
        return _prepare_then_commit(given, processor, stored)
    if "calls" in given:
        results = [_attempt(processor, call) for call in given.sequence("calls")]
        return {
            "results": results,
            "final": _text(stored.stored),
            "stored": _text(stored.stored),
            "pending": _text(stored.pending),
            "writes": len(stored.writes),
        }
    handle = _call(processor, given["call"])
    observed: dict[str, object] = {
        "checkpoint": _text(stored.stored),
        "stored": _text(stored.stored),
        "final": _text(stored.stored),
        "pending": _text(stored.pending),
        "pending_written": bool(stored.prepared),
        "written": bool(stored.writes),
    }
    if handle is not None:
        before = (stored.stored, stored.pending, len(stored.writes))
        handle.commit()
        observed["after_commit"] = AtLeast(checkpoint=_text(stored.stored), pending=_text(stored.pending))
        observed["commit_changes_nothing"] = before == (stored.stored, stored.pending, len(stored.writes))
    return observed


_CALL = re.compile(
    r"(prepare|checkpoint)(?:Checkpoint)?\s*\(?\s*"
    r"(?:(?:record|seq|sequence|at)\s+)?([\w-]*)(?:[,/ ]+(-?\d+))?\s*\)?"
)


def _call(processor: Checkpointer, call: object) -> PreparedCheckpoint | None:
    """`["17", 0]`, `"checkpoint()"`, `"checkpoint 17"`, `"prepare 17"`, `"prepare"`."""
    if isinstance(call, dict):
        told = Given(call)
        parts = (
            told.text("method", "call", default="checkpoint"),
            str(told.first("seq", "sequence_number", default="")),
        )
        return _call(
            processor, f"{parts[0]} {parts[1]} {int(told.number('sub', 'sub_sequence_number', default=0))}"
        )
    if not isinstance(call, str):
        processor.checkpoint(_asked(call))
        return None
    match = _CALL.fullmatch(call)
    if match is None:
        processor.checkpoint(checkpoint_of(call))
        return None
    at = checkpoint_of([match[2], int(match[3] or 0)]) if match[2] else None
    if match[1] == "prepare":
        return processor.prepare(at)
    processor.checkpoint(at)
    return None


def _asked(call: object) -> Checkpoint | None:
    return None if call is None else checkpoint_of(call)


def _attempt(processor: Checkpointer, call: object) -> str:
    try:
        _call(processor, call)
    except ValueError:
        return "IllegalArgument"
    return "ok"


def _prepare_then_commit(given: Given, processor: Checkpointer, stored: _Stored) -> Observed:
    handles = {}
    for value in given.sequence("prepare"):
        handles[repr(value)] = processor.prepare(checkpoint_of(value))
    pending = _text(stored.pending)
    results = []
    for value in given.sequence("commit", default=[]):
        try:
            handles[repr(value)].commit()
        except ValueError:
            results.append("IllegalArgument")
        else:
            results.append("ok")
    return {
        "results": results,
        "final": _text(stored.stored),
        "checkpoint": _text(stored.stored),
        "pending": _text(stored.pending),
        "pending_before_commit": pending,
    }


def _plan(given: Given) -> Observed:
    """Records arrive one after the other; after each the processor does or does not checkpoint."""
    last = checkpoint_of(given["last"]) if given.has("last") else None
    stored = _Stored(last)
    processor = Checkpointer(stored, last=last)
    seen: list[object] = []
    for step in given.sequence("plan"):
        if not isinstance(step, list) or len(step) != 2:
            raise NotUnderstood(f"plan step {step!r}")
        arrived, action = checkpoint_of(step[0]), str(step[1])
        if arrived == SHARD_END:
            processor.end_of_shard()
        else:
            processor.delivered(arrived)
        if action == "none":
            continue
        if re.fullmatch(r"prepare.*", action):
            processor.prepare(arrived if "seq" in action else None).commit()
        elif re.fullmatch(r"checkpoint\((seq\w*)?\)", action):
            processor.checkpoint(arrived if "seq" in action else None)
        else:
            raise NotUnderstood(f"plan action {action!r}")
        seen.append(_text(stored.stored))
    return {"stored": seen, "final": _text(stored.stored)}
