"""`make hostile`: look for records that cost more than they weigh, for a while.

    python -m tests.hostile --seeds 1-8 --evaluations 200 --kilobytes 256

Prints the worst shape by CPU and by memory, and fails if one is above what a record may cost.
"""

import argparse
import json
import sys
from collections.abc import Callable

from tests.hostile.cost import Cost, Scale, cost_of, scale
from tests.hostile.limits import MOST_CPU, MOST_MEMORY
from tests.hostile.search import climb
from tests.hostile.shapes import Shape


def worst(
    kind: str, measured: Callable[[Scale, Cost], float], seeds: range, evaluations: int, size: int
) -> tuple[Shape, float]:
    found: tuple[Shape, float] = (Shape(), 0.0)
    for seed in seeds:
        honest = scale(size)

        def price(shape: Shape, honest: Scale = honest) -> float:
            return measured(honest, cost_of(shape.record(size), memory=kind == "memory"))

        found = max(found, *climb(price, seed, evaluations), key=lambda pair: pair[1])
        print(f"{kind}, seed {seed}: the worst of all costs {found[1]:.1f} times its bytes", flush=True)
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--seeds", default="1-4")
    parser.add_argument("--evaluations", type=int, default=100)
    parser.add_argument("--kilobytes", type=int, default=256)
    options = parser.parse_args(arguments)
    first, _, last = options.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    is_sound = True
    for kind, measured, most in (("cpu", Scale.cpu, MOST_CPU), ("memory", Scale.memory, MOST_MEMORY)):
        shape, value = worst(kind, measured, seeds, options.evaluations, options.kilobytes * 1024)
        print(shape)
        is_sound = is_sound and value <= most
        print(json.dumps({"figure": f"hostile {kind}", "value": round(value, 1), "bar": most, "ok": value <= most}))
    return 0 if is_sound else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
