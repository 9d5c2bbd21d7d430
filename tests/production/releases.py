"""The code of a location as files: what a deploy puts in place."""

import re
from pathlib import Path

SOURCE = Path(__file__).with_name("consumer.py")
MODULE = SOURCE.stem


NOT_IN_FORMER = re.compile(r"^    compaction=None,.*\n", re.MULTILINE)
"""What the version before does not know; it compacts only what it is told to."""


def write(folder: Path, *, is_former: bool = False, **constants: str | float) -> Path:
    """Write the consumer with these constants into the folder, over what is there. Returns the folder. Raises
    ValueError for a constant that the consumer does not have. `is_former`: for the version before."""
    text = SOURCE.read_text()
    if is_former:
        text = NOT_IN_FORMER.sub("", text)
    for name, value in constants.items():
        text, found = re.subn(rf"^{name} = .*$", f"{name} = {value!r}", text, flags=re.MULTILINE)
        if found != 1:
            msg = f"{SOURCE.name} has no constant {name}"
            raise ValueError(msg)
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / "written"
    written.write_text(text)
    written.replace(folder / SOURCE.name)  # a code server may be reading it
    return folder
