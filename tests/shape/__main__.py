"""`make shape`: how large and how regular the code is, each figure beside its bar.

    python -m tests.shape            a line for each figure
    python -m tests.shape --all      and everything that is behind it

The last line is `shape: N of N`. The figures are for people: it exits 0 whatever it finds.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tests.docs.pages import ROOT, pages
from tests.shape import measures
from tests.shape.consumer import jobs_of_a_consumer

COPIED: Final = ("assets", "resources", "jobs")
MOST_LINES_TO_COPY: Final = 300


@dataclass(frozen=True)
class Figure:
    name: str
    value: int
    bar: int
    behind: Sequence[str] = ()

    @property
    def is_held(self) -> bool:
        return self.value <= self.bar


def figures() -> Iterator[Figure]:
    wheel = measures.modules(ROOT / "kcl_dagster")
    users = [module for module in wheel if not module.name.startswith("kcl_dagster.emulator")]
    largest = [f"{module.lines:6} {module.name}" for module in sorted(users, key=lambda one: -one.lines)[:20]]
    yield Figure("lines in the wheel outside of emulator/", sum(module.lines for module in users), 30_000, largest)
    lines = measures.lines_of(ROOT / folder for folder in COPIED)
    behind = [f"{count:6} {path.relative_to(ROOT)}" for path, count in lines.items()]
    yield Figure("lines in assets/, resources/ and jobs/", sum(lines.values()), MOST_LINES_TO_COPY, behind)
    for name, found in {
        "module names that occur more than once": measures.repeated_basenames(wheel),
        "class names that occur more than once": measures.repeated_classes(wheel),
        "modules whose names differ by their ending only": measures.twins(wheel),
        "circles of modules": [" ".join(group) for group in measures.circles(measures.imports(wheel))],
        "names that are metaphors": measures.metaphors(wheel),
    }.items():
        yield Figure(name, len(found), 0, found)
    texts = {str(page.relative_to(ROOT)): page.read_text() for page in pages()}
    texts |= {str(module.path.relative_to(ROOT)): module.text for module in wheel}
    vague = measures.vague_sentences(texts)
    yield Figure("sentences about nobody, somebody, whoever", len(vague), 0, vague)
    imported = measures.documented_imports(page.read_text() for page in pages())
    deep = [name for name, levels in imported.items() if levels > 1]
    yield Figure("levels of the deepest import in the docs", max(imported.values()), 1, deep)
    jobs = jobs_of_a_consumer()
    yield Figure("jobs of a consumer", len(jobs), 4, jobs)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.shape", description="Measure the structure of the code.")
    parser.add_argument("--all", action="store_true", help="show what is behind each figure")
    everything = parser.parse_args(arguments).all
    found = list(figures())
    for figure in found:
        sys.stdout.write(
            f"{figure.value:7,}  bar {figure.bar:6,}  {'held' if figure.is_held else 'OPEN'}  {figure.name}\n"
        )
        if everything:
            sys.stdout.write("".join(f"             {line}\n" for line in figure.behind))
    sys.stdout.write(f"shape: {sum(figure.is_held for figure in found)} of {len(found)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
