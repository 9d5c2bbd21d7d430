"""A picture of the fleet that Dagster's UI renders inline, and texts that keep its tables readable. Pure."""

import base64
from collections.abc import Mapping, Sequence

# Dagster shows a Markdown value inline if it is shorter than 1,000 characters, otherwise behind a button.
INLINE_CHARACTERS = 999
MAX_BARS = 12
WORD_JOINER = "\u2060"  # a browser does not break a line here

_BAR_HEIGHT = 12
_WIDTH = 180
_UNSERVED, _SERVED = "#d33", "#47a"


def distribution(leases_by_worker: Mapping[str, int], unserved: int = 0) -> str:
    """A bar chart: how many leases each slot holds, and in red how many are unserved. Empty if there is no bar."""
    bars = [(name, number, _SERVED) for name, number in sorted(leases_by_worker.items())]
    if unserved:
        bars.insert(0, ("unserved", unserved, _UNSERVED))
    for shown in range(min(len(bars), MAX_BARS), 0, -1):
        markdown = _image(bars[:shown])
        if len(markdown) <= INLINE_CHARACTERS:
            return markdown
    return ""


def _image(bars: Sequence[tuple[str, int, str]]) -> str:
    longest = max(number for _, number, _ in bars)
    unit = _WIDTH / max(longest, 1)
    # One path for each colour, because one element for each bar would be too long.
    paths = ""
    for colour in (_UNSERVED, _SERVED):
        strokes = "".join(
            f"M70 {row * _BAR_HEIGHT + 1}h{round(number * unit)}v9H70z"
            for row, (_, number, fill) in enumerate(bars)
            if fill == colour and number
        )
        paths += f"<path fill='{colour}' d='{strokes}'/>" if strokes else ""
    names = "".join(
        f"<text y='{row * _BAR_HEIGHT + 9}'>{name[-10:]} {number}</text>"
        for row, (name, number, _) in enumerate(bars)
    )
    svg = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH + 72}' height='{len(bars) * _BAR_HEIGHT}' "
        f"font-size='9' font-family='sans-serif'>{paths}{names}</svg>"
    )
    return f"![leases per worker](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"


def shard(lease_key: str) -> str:
    """A short name of a lease: the number of its shard (`shard 3`), after the name of the stream if the key
    contains it (`clicks shard 3`)."""
    *stream, shard_id = lease_key.split(":")
    number = shard_id.rpartition("-")[2].lstrip("0") or "0"
    name = f"shard {number}" if number.isdigit() else shard_id
    return f"{stream[1]} {name}" if len(stream) > 1 else name


def shortened(sequence: str, keep: int = 8) -> str:
    """The end of a sequence number. Only the end differs from record to record, and all 56 digits would widen every
    table. A text that does not end in a digit is not shortened."""
    ends_in_digits = sequence[-1:].isdigit() and len(sequence) > keep + 1
    return f"…{WORD_JOINER}{sequence[-keep:]}" if ends_in_digits else sequence


def unbroken(name: str) -> str:
    """The name of a slot in a form that a browser does not break into two lines. A second line would double the
    height of the table. All other names are returned unchanged."""
    word, dash, number = name.partition("-")
    return f"{word}-{WORD_JOINER}{number}" if dash and number.isdigit() else name
