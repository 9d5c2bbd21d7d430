"""The row with the moment through which an application is complete: every record that arrived earlier is stored.

The row also has an epoch, a number that a reset or an import raises. Within an epoch, the moment never falls, even
with several writers. A writer reads the row, then the leases, and then writes a later moment: it *advances* the
row. The write fails if the row no longer has the epoch that was read, or if the row's moment is not earlier than
the new one. The new moment is calculated from `stored_through` of the leases. What `stored_through` says of a lease
remains true until the lease is reset, so an advance does not require the leader lock. A reset raises the epoch
before and after it changes leases. So if a writer read leases before the reset changed them, the row does not keep
the moment of this writer: its advance is refused, or the second raise of the epoch replaces the moment.

The row also has the first moment of the application, see `FirstMoment`. The first advance stores it, and only a
reset of all leases changes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kcl_dagster import aws
from kcl_dagster.application import Application
from kcl_dagster.errors import OutcomeUnknown
from kcl_dagster.model.first_moment import FirstMoment
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables.attributes import ENTITY_TYPE, Item, ItemReader, n, s
from kcl_dagster.tables.expressions import Request, Update
from kcl_dagster.tables.outcomes import WriteVerdict
from kcl_dagster.tables.places import Place, TableLayout
from kcl_dagster.tables.sending import DEADLINE_SECONDS, Applied, Sender

COMPLETENESS_KEY: Final = "kdComplete"
COMPLETENESS: Final = "KD_COMPLETE"
THROUGH: Final = "kdThrough"  # epoch seconds
EPOCH: Final = "kdEpoch"
BACK_TO: Final = "kdBackTo"  # epoch seconds
RESETS: Final = "kdResets"  # one pair epoch:back_to per reset, for example 1795000000:1794990000,1795000900:
MOST_RESETS: Final = 16  # each takes 22 bytes of the row
FIRST: Final = "kdFirst"  # for example 1795000000, or 1795000000:created; see FirstMoment
RAISES: Final = 5  # attempts to raise the epoch; an attempt fails if a leader advances the row at the same time


@dataclass(frozen=True, slots=True)
class SetBack:
    """A reset or an import: the epoch that it began, and the moment to which it went back. The moment is None if it
    is not known."""

    epoch: int
    back_to: int | None = None


@dataclass(frozen=True, slots=True)
class WrittenThrough:
    """The content of the row. `through` is None while no moment is known. `back_to`: the moment to which the reset
    or the import that began the epoch went back. It is None in the first epoch, and if the moment is not known."""

    through: int | None = None
    epoch: int = 0
    back_to: int | None = None
    resets: tuple[SetBack, ...] = field(default=(), compare=False)
    """The resets and imports, oldest first. One is left out if a later one went back as far or further, because the
    later one includes it. Comparisons ignore this field, because the epoch determines it."""

    first: FirstMoment | None = None
    """The first moment of the application. None before the first advance, and in applications that an earlier
    version or a Java worker began."""

    @property
    def awaits_first(self) -> bool:
        """Whether the next advance has to store the first moment."""
        if self.first is not None:
            return not self.first.is_settled
        return self.through is None and self.epoch == 0


class CompletenessRow:
    """Reads and writes the moment through which the application is complete. Has no state, so any thread can call
    it."""

    def __init__(
        self,
        client: aws.Client,
        application: Application,  # noqa: ARG002 (all table classes take the same arguments)
        layout: TableLayout,
        runtime: Runtime,
        *,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        self._sender = Sender(client, runtime, deadline_seconds)
        self._place = layout.coordinator
        self._clock = runtime.clock

    def load(self) -> WrittenThrough:
        """Read the row. Raises UnreadableItem."""
        return self._parsed(self._sender.get(self._place.table, {self._place.key: s(COMPLETENESS_KEY)}))

    def advance(self, known: WrittenThrough, through: int, first: FirstMoment | None = None) -> WrittenThrough:
        """Write a later moment. `known`: the row, read before the leases were read. `first`: the first moment,
        which is stored if `known` has none. Returns the row as it is afterwards. If another writer was faster, the
        returned row has another epoch, a later moment or another first moment."""
        if known.through is not None and through <= known.through:
            return known
        settled = first if known.awaits_first else None
        wanted = replace(known, through=through, first=settled or known.first)

        def judge(item: Item | None) -> WriteVerdict:
            now = self._parsed(item)
            if now == wanted:
                return WriteVerdict.APPLIED
            is_possible = now.epoch == known.epoch and (now.through is None or now.through < through)
            is_possible &= settled is None or now.first == known.first
            return WriteVerdict.STANDING if is_possible else WriteVerdict.SUPERSEDED

        outcome = self._sender.write(advance_completeness(self._place, known, through, settled), judge)
        return wanted if isinstance(outcome, Applied) else self._parsed(outcome.item)

    def set_back(
        self,
        to: int | None,
        *,
        unless_known: FirstMoment | None = None,
        all_from: FirstMoment | None = None,
    ) -> WrittenThrough:
        """Begin a new epoch, in which the application is complete through `to` at most. If `to` is None, this
        moment is not known. Returns the new row.

        `unless_known`: the first moment to store if the row has none yet. `all_from`: the first moment after a
        reset of all leases. It is stored if the first moment in the row is later.

        The number of the epoch is the present time, so that no epoch is used twice if the row is lost and created
        again.
        """
        for _ in range(RAISES):
            known = self.load()
            back_to = None if to is None or known.through is None else min(to, known.through)
            epoch = max(known.epoch + 1, int(self._clock.now()))
            resets = with_reset(known.resets, SetBack(epoch, back_to))
            first = first_after(known, unless_known=unless_known, all_from=all_from)
            wanted = WrittenThrough(back_to, epoch, back_to, resets, first)

            def judge(
                item: Item | None, wanted: WrittenThrough = wanted, known: WrittenThrough = known
            ) -> WriteVerdict:
                now = self._parsed(item)
                if now == wanted:
                    return WriteVerdict.APPLIED
                return WriteVerdict.STANDING if now == known else WriteVerdict.SUPERSEDED

            outcome = self._sender.write(set_completeness_back(self._place, known.epoch, wanted), judge)
            if isinstance(outcome, Applied):
                return wanted
        raise OutcomeUnknown(f"the row {COMPLETENESS_KEY} changed {RAISES} times while it was to be set back")

    def _parsed(self, item: Item | None) -> WrittenThrough:
        if item is None:
            return WrittenThrough()
        reader = ItemReader(item, self._place.key)
        if reader.text(ENTITY_TYPE) != COMPLETENESS:
            reader.refuse(ENTITY_TYPE, f"should be {COMPLETENESS}")
        through, epoch, back_to = reader.whole(THROUGH), reader.required_whole(EPOCH), reader.whole(BACK_TO)
        text = reader.text(RESETS)
        try:
            resets = _unpacked(text) if text is not None else (SetBack(epoch, back_to),) if epoch else ()
        except ValueError:
            reader.refuse(RESETS, f"should be pairs of numbers, is {text!r}")
        packed = reader.text(FIRST)
        try:
            first = None if packed is None else FirstMoment.unpacked(packed)
        except ValueError:
            reader.refuse(FIRST, f"should be a number and what is known of it, is {packed!r}")
        return WrittenThrough(through, epoch, back_to, resets, first)


def first_after(
    known: WrittenThrough, *, unless_known: FirstMoment | None = None, all_from: FirstMoment | None = None
) -> FirstMoment | None:
    """Return the first moment after a reset or an import; see `CompletenessRow.set_back`."""
    first = unless_known if known.awaits_first and unless_known is not None else known.first
    return all_from if first is not None and all_from is not None and all_from.is_before(first) else first


def with_reset(known: Sequence[SetBack], new: SetBack) -> tuple[SetBack, ...]:
    """Add a new reset to the known resets. Drop the known resets that went back no further, because the new reset
    includes them. If there are too many resets, the oldest is merged into the next one. The merged reset covers
    more than was in fact read again."""
    kept = [one for one in known if not _includes(new, one)] + [new]
    moments = [one for one in kept if one.back_to is not None]
    if len(moments) > MOST_RESETS:
        oldest, following = moments[:2]
        kept[kept.index(following)] = SetBack(following.epoch, oldest.back_to)
        kept.remove(oldest)
    return tuple(kept)


def _includes(new: SetBack, one: SetBack) -> bool:
    if new.back_to is None or one.back_to is None:
        return new.back_to is one.back_to
    return new.back_to <= one.back_to


def _packed(resets: Sequence[SetBack]) -> str:
    return ",".join(f"{one.epoch}:{'' if one.back_to is None else one.back_to}" for one in resets)


def _unpacked(text: str) -> tuple[SetBack, ...]:
    """Decode what `_packed` returned. Raises ValueError."""
    pairs = [one.split(":") for one in text.split(",")]
    return tuple(SetBack(int(epoch), int(back_to) if back_to else None) for epoch, back_to in pairs)


def advance_completeness(
    place: Place, before: WrittenThrough, through: int, first: FirstMoment | None = None
) -> Request:
    """Return the request that writes a later moment. In the first epoch, the request also creates the row. DynamoDB
    refuses the request if the stored row has another epoch than `before`, or the same or a later moment. With
    `first`, DynamoDB also refuses it if the first moment in the row has changed."""
    update = Update(place.table, place.key, s(COMPLETENESS_KEY))
    update.set({ENTITY_TYPE: s(COMPLETENESS), THROUGH: n(through), EPOCH: n(before.epoch)})
    known = f"{EPOCH} = :{EPOCH} AND (attribute_not_exists({THROUGH}) OR {THROUGH} < :{THROUGH})"
    if first is not None:
        update.set({FIRST: s(first.packed)})
        known += f" AND attribute_not_exists({FIRST})" if before.first is None else f" AND {FIRST} = :first"
    values = {":first": s(before.first.packed)} if first is not None and before.first is not None else {}
    condition = f"attribute_not_exists(#key) OR ({known})" if before.epoch == 0 else known
    return update.require(condition, values).request()


def set_completeness_back(place: Place, known_epoch: int, wanted: WrittenThrough) -> Request:
    """Return the request that begins a new epoch: it writes `wanted` to the row. DynamoDB refuses the request if
    the stored row has another epoch than `known_epoch`. If `known_epoch` is 0, the request also creates the row."""
    update = Update(place.table, place.key, s(COMPLETENESS_KEY))
    update.set({ENTITY_TYPE: s(COMPLETENESS), EPOCH: n(wanted.epoch), RESETS: s(_packed(wanted.resets))})
    if wanted.back_to is None:
        update.remove(THROUGH, BACK_TO)
    else:
        update.set({THROUGH: n(wanted.back_to), BACK_TO: n(wanted.back_to)})
    if wanted.first is not None:
        update.set({FIRST: s(wanted.first.packed)})
    known = f"{EPOCH} = :known"
    return update.require(
        f"attribute_not_exists(#key) OR {known}" if known_epoch == 0 else known, {":known": n(known_epoch)}
    ).request()
