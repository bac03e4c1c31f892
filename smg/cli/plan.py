"""`smg plan`: choose settings from the scans and the machine, and write them with their reasons."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smg.cli.options import LabelWords, LeaveOut, Roi, ending_in
from smg.cli.terminal import detail, progress
from smg.errors import Misuse, SmgError

if TYPE_CHECKING:
    from smg.planning.facts import CasesOf
    from smg.planning.plan import Made
    from smg.sites.site import Site


def plan(
    data: Annotated[list[Path], typer.Argument(metavar="SITE...", help="Folders of sites, or CSV files.")],
    minutes: Annotated[float, typer.Option(help="Training time of a round, in minutes.", min=0.1)] = 60.0,
    out: Annotated[
        Path | None, typer.Option(help="YAML file to write, for `--config`. [default: print it]", dir_okay=False)
    ] = None,
    labels: LabelWords = None,
    roi: Roi = None,
    leave_out: LeaveOut = False,
) -> None:
    """Choose settings from the scans and from this machine, and write them with a reason beside each.

    Looks at every scan and mask (pixels, fields of view, where the foreground lies), times real steps of candidate
    sizes, and takes the largest size that allows enough iterations in the time of a round. The plan that `learn` makes
    for a new model does not look at the subjects that will be tested on.

    Example: `smg plan data/RUNMC --minutes 30 --out plan.yaml`, then `smg learn model data/RUNMC --config plan.yaml`
    """
    from smg.files import replacing
    from smg.sites.labels import Labels
    from smg.sites.layouts import find_sites
    from smg.sites.split import twice

    if out:
        ending_in(out, ".yaml", ".yml")
        if out.exists():
            raise SmgError(f"{out}: exists already; give another name, or remove it")
    sites = [site.with_roi(roi or []) for path in data for site in find_sites(path).values()]
    for name in twice(site.name for site in sites):
        raise Misuse(f"two sites are called {name}; give each site once, and folders of different names")
    given = {"preparation": {"labels": Labels.parse(labels).model_dump()}} if labels else {}
    made = planned(sites, minutes, leave_out, given)
    if out is None:
        print(made.as_file(), end="")
        print("\n".join(f"# {line}" for line in made.in_short()))
        return
    with replacing(out) as temporary:
        temporary.write_text(made.as_file())
    print("\n".join(made.in_short()))
    print(f"The plan: {out}. Next: smg learn MODEL {data[0]} --config {out}", file=sys.stderr)


def planned(
    sites: list[Site], minutes: float, leave_out: bool, given: dict[str, Any], cases_of: CasesOf | None = None
) -> Made:
    """Return a plan from the scans and the machine; settings in `given` are kept as they are.

    `cases_of` returns the cases of a site that the plan may look at. Default: all of them.
    """
    from smg.learner.config_layers import laid
    from smg.planning.facts import look_at
    from smg.planning.plan import make_plan
    from smg.sites.labels import Labels

    labels = Labels.model_validate((laid(given).get("preparation") or {}).get("labels") or {})
    with progress("preparing a plan", sum(len(site.subjects) for site in sites)) as advance:
        facts = look_at(sites, labels, leave_out, advance, cases_of)
    return make_plan(facts, minutes, detail, given)
