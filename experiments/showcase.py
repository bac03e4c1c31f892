"""Make the documentation's example report: two methods on small phantom sites, as one page.

    python -m experiments.showcase docs/showcase/report.html

Nothing of a patient is in it. Sites and runs are kept in build/showcase, so that a second call draws the page alone.
The training is short (a minute of processor time): the page shows what a report looks like, and not how good a method
is.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from experiments.mistakes import in_one_line
from smg.bench.plan import PlannedRun, read_plan
from smg.bench.workers import Bench
from smg.cores import cores
from smg.errors import SmgError
from smg.phantom.phantom import write_phantom_sites
from smg.report.page import write_report

SUBJECTS = 4  # per site
SETTINGS = {"iterations": 40, "validate_every": 40}
BUILD = Path("build/showcase")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the page to write")
    parser.add_argument("--build", type=Path, default=BUILD, help=f"where sites and runs are kept; default {BUILD}")
    options = parser.parse_args()
    make(options.out, options.build)


def make(out: Path, build: Path) -> None:
    """Draw phantom sites, run the methods on them, and write the report of both."""
    plan = replace(read_plan("demo").only(seeds=[0]), words=SETTINGS)
    (stream,) = plan.streams.values()
    write_phantom_sites(build / "sites", letters=stream.sites, subjects=SUBJECTS)
    bench = Bench(plan, build / "runs", build / "sites", workers=min(cores(), len(plan.methods)))
    bench.go(lambda _: None, _announce)
    if bench.failed:
        raise SmgError(f"{bench.failed[0][0].label}: {bench.failed[0][1]}")
    out.parent.mkdir(parents=True, exist_ok=True)
    write_report([build / "runs"], out)  # without pictures: they would make the page twenty times as large


def _announce(run: PlannedRun, fault: str | None) -> None:
    print(f"{run.label}: {fault or 'done'}", flush=True)


if __name__ == "__main__":
    with in_one_line():
        main()
