"""Does `smg demo` tell the same story whatever the rounding and the seed? Run it with several of both.

    python -m experiments.demo_story --seeds 0,1,2 --threads 1,2,3 --out runs/demo-story

Prints a line for each demo: the DSC of the first site after it was learned and at the end, by fine-tuning and by
SGA(+c), as the picture's headings have it; and the same of the slice in the first tile of each method. Another number
of threads rounds in another way, and another seed makes other phantoms, first weights and test subjects. A demo that is
done is not run again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from experiments.mistakes import in_one_line
from smg.report.demo_picture import by_method, mean_dsc, slice_dsc, tiles_of
from smg.report.pictures import contours
from smg.report.runs import Run, find_runs

METHODS = ("finetune", "sga+c")
HEAD = ("seed", "threads", "fine-tuning", "first tile", "SGA(+c)", "first tile", "SGA(+c) ends higher by")


@dataclass(frozen=True)
class Course:
    """DSC of the first site after it was learned and at the end, in %: the mean over seeds, and of the first tile."""

    then: float
    now: float
    tile_then: float
    tile_now: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2", help="seeds of the demo, by commas")
    parser.add_argument("--threads", default="1,2,3", help="CPU threads of each run, by commas")
    parser.add_argument("--out", type=Path, required=True, help="folder of the demos")
    options = parser.parse_args()
    print(line(HEAD), line(["---:"] * len(HEAD)), sep="\n", flush=True)
    for threads, seed in product(options.threads.split(","), options.seeds.split(",")):
        folder = options.out / f"seed-{seed}-threads-{threads}"
        if not (folder / "report.html").exists():  # its last file
            smg = [sys.executable, "-m", "smg", "demo", "--out", str(folder), "--seed", seed, "--threads", threads]
            subprocess.run(smg, check=True, stdout=subprocess.DEVNULL)
        finetune, sga = courses(find_runs([folder / "runs"]), folder / "sites")
        print(line([seed, threads, *cells(finetune), *cells(sga), f"{sga.now - finetune.now:.1f}"]), flush=True)


def courses(runs: list[Run], data: Path) -> list[Course]:
    """Return what each of the demo's two methods did to the first site."""
    methods, found = by_method(runs), []
    for of in (methods[name] for name in METHODS):
        order = of[0].order
        seen, number = tiles_of(contours(of[0].folder, data, order[0], (1, len(order))))[0]
        means = [mean_dsc(of, after, order[0]) for after in (order[0], order[-1])]
        found.append(Course(*(100 * dsc for dsc in [*means, *(slice_dsc(seen, number, n) for n in (1, len(order)))])))
    return found


def cells(course: Course) -> tuple[str, str]:
    """Return a course as its two cells."""
    return f"{course.then:.1f} to {course.now:.1f}", f"{course.tile_then:.0f} to {course.tile_now:.0f}"


def line(cells: list[str] | tuple[str, ...]) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    with in_one_line():
        main()
