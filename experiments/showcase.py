"""Make the documentation's example report: two methods on small phantom sites, as one page.

    python -m experiments.showcase docs/showcase/report.html

Nothing of a patient is in it. The training is short (a minute of processor time): the page shows what a report looks
like, and not how good a method is. `make docs` calls it only if the report's sources are newer than the page.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from experiments.mistakes import in_one_line
from smg.bench.planned_runs import PlannedRun, read_plan
from smg.bench.workers import Bench
from smg.cores import cores
from smg.errors import SmgError
from smg.phantom.phantom import write_phantom_sites
from smg.report.page import write_report

SUBJECTS = 4  # per site
SETTINGS = {"iterations": 40, "validate_every": 40}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the page to write")
    out = parser.parse_args().out
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        make(out, Path(folder))


def make(out: Path, folder: Path) -> None:
    """Draw phantom sites and run the methods on them in a folder, and write the report of both."""
    plan = replace(read_plan("demo").only(seeds=[0]), words=SETTINGS)
    (stream,) = plan.streams.values()
    write_phantom_sites(folder / "sites", letters=stream.sites, subjects=SUBJECTS)
    bench = Bench(plan, folder / "runs", folder / "sites", workers=min(cores(), len(plan.methods)))
    bench.go(lambda: None, _announce)
    if bench.failed:
        raise SmgError(f"{bench.failed[0][0].label}: {bench.failed[0][1]}")
    write_report([folder / "runs"], out)  # without pictures: they would make the page twenty times as large


def _announce(run: PlannedRun, fault: str | None) -> None:
    print(f"{run.label}: {fault or 'done'}", flush=True)


if __name__ == "__main__":
    with in_one_line():
        main()
