"""Text from tables and streams, made safe for a terminal.

Everyone who is allowed to write to a table can choose names of workers and leases. A terminal would execute escape
sequences in them, and rich would read square brackets as markup.
"""

import unicodedata
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.text import Text

_REPLACEMENT: Final = "\ufffd"
# Control, invisible and directional characters, surrogates, and separators of lines.
_UNPRINTABLE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def printable(text: str) -> str:
    """The text with every control character other than the newline replaced, so that a terminal only displays
    it."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        _REPLACEMENT if unicodedata.category(character) in _UNPRINTABLE and character != "\n" else character
        for character in text
    )


def cell(text: str, style: str = "") -> Text:
    """A cell of a rich table that shows the text unchanged, including brackets, in one line."""
    return Text(printable(text).replace("\n", _REPLACEMENT), style=style)


def show(view: RenderableType, console: Console) -> None:
    """Print a view. If the output is not a terminal, lines of text are not wrapped, so that a program that reads
    the output finds whole sentences."""
    for part in view.renderables if isinstance(view, Group) else [view]:
        console.print(part, soft_wrap=isinstance(part, Text) and not console.is_terminal)
