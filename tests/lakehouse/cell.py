"""A cell of the table: one operation of a sink in one catalog, run for real."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kcl_dagster.errors import KclError


@dataclass(frozen=True, slots=True)
class Operation:
    """`run` raises if it fails. `what`: what is done and compared, for the table in the docs. `places`: names of
    catalogs; empty: all of them."""

    name: str
    what: str
    run: Callable[..., None]
    places: tuple[str, ...] = ()


def refusal(call: Callable[[], Any], *words: str) -> str:
    """The error of what the sink has to refuse, which is of one line and has these words."""
    try:
        call()
    except KclError as error:
        said = str(error)
    except Exception as error:
        found = [one for one in causes(error) if isinstance(one, KclError)]
        said = str(found[-1]) if found else str(error).splitlines()[0]
    else:
        raise AssertionError(f"nothing was refused, and {words} was expected")
    assert "\n" not in said.strip(), f"more than one line: {said}"
    missing = [word for word in words if word not in said]
    assert not missing, f"{missing} not in: {said}"
    return said


def causes(error: BaseException | None) -> list[BaseException]:
    found = []
    while error is not None:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found
