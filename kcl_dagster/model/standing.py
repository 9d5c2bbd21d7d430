"""For how long a value in a table has been observed unchanged.

The KCL takes a lease without the owner's consent only after the lease's counter was *observed* to be unchanged for
the lease duration. A timestamp is not sufficient, because the clocks of machines differ. Every duration here is a
lower bound, which stays true even if the observer loses its memory:

- Within a process, a version is known to have stood (been unchanged) from the END of the first read that found the
  version to the START of the latest such read.
- Between processes, only durations are exchanged ("version v of key k stood for at least s seconds"), never points
  in time. Such a statement remains true for ever. If documents are lost, duplicated or replayed, or written by two
  observers, a result can become smaller, but never larger than the true duration.

The caller must ensure that reads are strongly consistent, and that a value never has a former version again.

Modelled in spec/Takeover.tla.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

Document = dict[str, list[object]]
"""Key -> [version, seconds], as JSON. Small, see `Standing.to_document`."""

# The most keys in a document, which then has about 100 KB before compression. A row can have 400 KB. The next
# observer knows nothing about keys that do not fit, so it has to observe these keys for longer.
MOST_ENTRIES: Final = 4096
# About a thousand years; no version stands for longer. An entry with more seconds was not written by an observer.
_MOST_SECONDS: Final = 3e10


@dataclass(slots=True)
class _Sighting:
    """A version of a value, and a lower bound of its age: at the time `since`, the value had had this version for
    at least `seconds`. Times are monotonic. `last_read`: the start of this process's latest read that found this
    version; None if this process has not found it yet."""

    version: str
    seconds: float
    since: float
    last_read: float | None = None

    def improve(self, seconds: float, since: float) -> None:
        """Replace `seconds` and `since` if the new values give this version a higher lower bound of its age."""
        if seconds - since > self.seconds - self.since:
            self.seconds, self.since = seconds, since

    def stood(self) -> float:
        if self.last_read is None:
            return 0.0
        return self.seconds + max(0.0, self.last_read - self.since)


class Standing:
    """Lower bounds of how long versions have stood (been unchanged). For one observer with one monotonic clock, one
    thread at a time."""

    def __init__(self) -> None:
        self._sightings: dict[str, _Sighting] = {}

    @classmethod
    def from_document(cls, document: Mapping[str, object], at: float) -> "Standing":
        """A new observer that knows what the document of an earlier observer says. `at`: monotonic time after the
        document was read."""
        standing = cls()
        standing.absorb(document, at)
        return standing

    def absorb(self, document: Mapping[str, object], at: float) -> None:
        """Add what the document of another observer says. `at`: monotonic time after the document was read.

        Skips keys whose content cannot be read, and keys for which this observer has found another version. This
        does no harm: the value of a skipped key only has to be observed for longer.
        """
        for key, entry in document.items():
            statement = _read_entry(entry)
            if statement is None:
                continue
            version, seconds = statement
            known = self._sightings.get(key)
            if known is None:
                self._sightings[key] = _Sighting(version, seconds, at)
            elif known.version == version:
                known.improve(seconds, at)

    def observe(self, key: str, version: str, read_started: float, read_ended: float) -> None:
        """Record that one strongly consistent read, sent at `read_started` and answered by `read_ended`, found
        `version`."""
        known = self._sightings.get(key)
        if known is None or known.version != version:
            self._sightings[key] = _Sighting(version, 0.0, read_ended, read_started)
            return
        known.improve(0.0, read_ended)
        known.last_read = read_started if known.last_read is None else max(known.last_read, read_started)

    def stood_for(self, key: str, version: str) -> float:
        """The number of seconds for which `version` is known to have stood. 0 if this process itself has not read
        this version."""
        known = self._sightings.get(key)
        return known.stood() if known is not None and known.version == version else 0.0

    def keep(self, is_alive: Callable[[str], bool]) -> None:
        self._sightings = {key: seen for key, seen in self._sightings.items() if is_alive(key)}

    def to_document(self, at_least: float, keys: Iterable[str] | None = None) -> Document:
        """Return the document for the next observer: the versions that have stood for `at_least` seconds or more,
        longest first.

        A healthy lease changes several times per lease duration and is not included. The document is therefore
        usually empty, and its size is always bounded.
        """
        names = self._sightings.keys() if keys is None else keys
        seen = ((name, self._sightings[name]) for name in names if name in self._sightings)
        worth = [
            (sighting.stood(), name, sighting.version) for name, sighting in seen if sighting.stood() >= at_least
        ]
        worth.sort(key=lambda entry: (-entry[0], entry[1]))
        return {name: [version, _rounded_down(stood)] for stood, name, version in worth[:MOST_ENTRIES]}


def _rounded_down(seconds: float) -> float:
    return math.floor(seconds * 1000) / 1000


def _read_entry(entry: object) -> tuple[str, float] | None:
    if not isinstance(entry, (list, tuple)) or len(entry) != 2:
        return None
    version, seconds = entry
    if not isinstance(version, str) or isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        return None
    return (version, float(seconds)) if 0 <= seconds <= _MOST_SECONDS else None
