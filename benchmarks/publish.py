"""Copies what can be published of a bench: numbers, splits, configurations, tables, figures and the report; no model.

    python benchmarks/publish.py runs/prostate-lite results/prostate-lite

Of each finished run it takes `results.json`, `split.json` and `run.yaml`, which makes the run again, and what
`afterwards.py` measured. No image data, no exemplar and no weight is among them. Copied back to where they came from,
they count as done for `smg bench`.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

from friendly import in_one_line  # benchmarks/friendly.py

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
    bench, out = options.bench, options.out
    if not (bench / "bench.json").is_file():
        sys.exit(f"{bench}: no bench there: it has no bench.json")
    if out.exists() and (not (out / "bench.json").exists() or any(out.rglob("model.json"))):
        sys.exit(f"{out}: not a published bench; give another folder")
    runs = find_runs([bench])
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as beside:  # all of it, or nothing
        made = Path(beside) / out.name
        made.mkdir()
        shutil.copyfile(bench / "bench.json", made / "bench.json")
        for run in runs:
            place = made / run.folder.relative_to(bench)
            place.mkdir(parents=True, exist_ok=True)
            for name in (*FILES, *(name for name in MORE if (run.folder / name).exists())):
                shutil.copyfile(run.folder / name, place / name)
        with redirect_stdout(io.StringIO()):  # the files' names are those of a moment
            write_tables(made)
        if not options.numbers:
            write_report([bench], made / "report.html")  # from the whole bench: it has the rounds' records
        for page in ("README.md", "claims.md"):  # evidence.py's, until it is run again
            if (out / page).exists():
                shutil.copyfile(out / page, made / page)
        if out.exists():
            out.rename(Path(beside) / "before")
        made.rename(out)
    print(f"{len(runs)} runs published in {out}")


if __name__ == "__main__":
    with in_one_line():
        main()
