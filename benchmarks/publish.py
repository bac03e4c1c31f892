"""Copies what can be published of a bench: numbers, splits, configurations, tables, figures and the report; no model.

    python benchmarks/publish.py runs/prostate-lite results/prostate-lite

Of each finished run it takes `results.json`, `split.json` and `run.yaml`, which makes the run again, and what
`afterwards.py` measured. No image data, no exemplar and no weight is among them. Copied back to where they came from,
they count as done for `smg bench`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from smg.cli.runs import write_tables
from smg.report.page import write_report
from smg.report.runs import find_runs

FILES = ("results.json", "split.json", "run.yaml")
MORE = ("validation.json", "unseen.json")  # by benchmarks/afterwards.py


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=Path, help="the bench's folder")
    parser.add_argument("out", type=Path, help="where its numbers go")
    parser.add_argument("--numbers", action="store_true", help="no page, no figures")
    options = parser.parse_args()
    runs = find_runs([options.bench])
    if options.out.exists():  # what was published before goes; nothing else may
        if not (options.out / "bench.json").exists() or any(options.out.rglob("model.json")):
            sys.exit(f"{options.out}: not a published bench; give another folder")
        shutil.rmtree(options.out)
    options.out.mkdir(parents=True)
    shutil.copyfile(options.bench / "bench.json", options.out / "bench.json")
    for run in runs:
        place = options.out / run.folder.relative_to(options.bench)
        place.mkdir(parents=True, exist_ok=True)
        for name in (*FILES, *(name for name in MORE if (run.folder / name).exists())):
            shutil.copyfile(run.folder / name, place / name)
    write_tables(options.out)
    if not options.numbers:
        write_report([options.bench], options.out / "report.html")  # from the whole bench: it has the rounds' records
    print(f"{len(runs)} runs published in {options.out}")


if __name__ == "__main__":
    main()
