"""What a report costs: a made-up bench of 48 runs with 30 test subjects each, five rounds, turned into one page.

    python benchmarks/report.py

Prints the seconds it took, how much of them were figures, and the page's size.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # the made-up bench is the tests'

from smg.report import page
from smg.report.figures import Figures
from tests.report.benches import CHARACTER, TWO_STREAMS, make_bench


def timed_figures() -> list[float]:
    """Time every figure from here on, and return the list of their seconds."""
    seconds: list[float] = []
    draw = Figures.compose

    def compose(*args: object, **more: object) -> object:
        start = time.perf_counter()
        drawn = draw(*args, **more)  # type: ignore[arg-type]
        seconds.append(time.perf_counter() - start)
        return drawn

    Figures.compose = compose  # type: ignore[method-assign,assignment]
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reports", type=int, default=400, help="lines of a round's log: iterations / 50")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = make_bench(Path(folder, "bench"), list(CHARACTER), TWO_STREAMS, subjects=6, reports=arguments.reports)
        figures = timed_figures()
        start, cpu = time.perf_counter(), time.process_time()
        written = page.write_report([bench], Path(folder, "report.html"))
        costs = {
            "runs": written.runs,
            "seconds": time.perf_counter() - start,
            "cpu_seconds": time.process_time() - cpu,
            "figures": len(figures),
            "figure_seconds": sum(figures),
            "megabytes": written.page.stat().st_size / 1e6,
        }
    took = f"{costs['seconds']:.1f} s ({costs['cpu_seconds']:.1f} CPU s)"
    drawn = f"{costs['figures']} figures {costs['figure_seconds']:.1f} s"
    print(f"{costs['runs']} runs: {took}, of which {drawn}; the page has {costs['megabytes']:.2f} MB")
    if arguments.json:
        print(json.dumps(costs))


if __name__ == "__main__":
    main()
