"""Copy what can be published of a bench: numbers, splits, configurations and tables. No model, no picture, no page.

    python -m experiments.publish runs/prostate-lite results/prostate-lite

Takes `results.json`, `split.json` and `run.yaml` of each finished run, with which it can be run again, and what
`experiments.afterwards` measured. No image data, no exemplar and no weight is among them. If they are copied back to
where they came from, `smg bench` counts their runs as done. `smg report` makes the page of the bench again.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from experiments.mistakes import in_one_line
from smg.errors import SmgError
from smg.report.bench_tables import write_tables
from smg.report.runs import find_runs

FILES = ("results.json", "split.json", "run.yaml")
PAGES = ("README.md", "claims.md", "power.md", "aims.md")  # kept until experiments.evidence writes them again
MORE = ("validation.json", "unseen.json", "guard.json")  # written by experiments.afterwards


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=Path, help="the bench's folder")
    parser.add_argument("out", type=Path, help="the folder to publish in")
    options = parser.parse_args()
    count = publish(options.bench, options.out)
    print(f"{count} runs published in {options.out}")


def publish(bench: Path, out: Path) -> int:
    """Publish a bench, replacing what was published of it before; return the number of runs."""
    if not (bench / "bench.json").is_file():
        raise SmgError(f"{bench}: not a bench: it has no bench.json; name the folder that `smg bench` wrote")
    if out.exists() and (not (out / "bench.json").exists() or any(out.rglob("model.json"))):
        raise SmgError(f"{out}: not a published bench; give another folder")
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
        write_tables(made)
        for page in PAGES:
            if (out / page).exists():
                shutil.copyfile(out / page, made / page)
        if out.exists():
            out.rename(Path(beside) / "before")
        made.rename(out)
    return len(runs)


if __name__ == "__main__":
    with in_one_line():
        main()
