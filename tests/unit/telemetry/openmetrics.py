"""A reader of the OpenMetrics text format that refuses what the format forbids."""

import re
from dataclasses import dataclass, field

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)?\}})? (\S+)")
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?([eE][+-]?\d+)?|Inf)|NaN")
SUFFIXES = {"counter": ("_total", "_created"), "gauge": ("",), "info": ("_info",)}


@dataclass
class Page:
    """Samples by name and labels."""

    samples: dict[tuple[str, tuple[tuple[str, str], ...]], float] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)

    def value(self, name: str, **labels: str) -> float:
        """Of the one sample with these labels among others."""
        [found] = self.values(name, **labels)
        return found

    def values(self, name: str, **labels: str) -> list[float]:
        return [
            value
            for (sample, has), value in self.samples.items()
            if sample == name and labels.items() <= dict(has).items()
        ]


def parse(text: str) -> Page:
    """Raises AssertionError, naming the line."""
    assert text.endswith("# EOF\n"), "a page ends with # EOF"
    page, family, begun = Page(), "", False
    seen: set[str] = set()
    for line in text.removesuffix("# EOF\n").splitlines():
        assert line, "empty lines are not allowed"
        if line.startswith("#"):
            _, keyword, name, rest = line.split(" ", 3)
            assert keyword in {"TYPE", "UNIT", "HELP"}, line
            if name != family:
                assert name not in seen, f"{line}: the family is there already, and may not be in two places"
                seen.add(name)
                family, begun = name, False
            assert not begun, f"{line}: after the family's first sample"
            if keyword == "TYPE":
                assert name not in page.kinds, f"{line}: a second type"
                assert rest in SUFFIXES, line
                page.kinds[name] = rest
            if keyword == "UNIT":
                assert name.endswith(f"_{rest}"), line
        else:
            begun = True
            assert family in page.kinds, f"{line}: before the type of {family}"
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            name, value = match[1], match[match.lastindex or 0]
            assert name in {family + suffix for suffix in SUFFIXES[page.kinds[family]]}, f"{line}: not of {family}"
            assert NUMBER.fullmatch(value), line
            labels = tuple(sorted(re.findall(LABEL, match[2] or "")))
            assert len({label for label, _ in labels}) == len(labels), f"{line}: a label twice"
            assert (name, labels) not in page.samples, f"{line}: a sample twice"
            if page.kinds[family] == "counter":
                assert float(value) >= 0, line
            page.samples[name, labels] = float(value)
    return page
