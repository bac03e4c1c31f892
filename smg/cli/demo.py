"""`smg demo`: the main job, on phantom sites, with no data of your own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="The folder to write into.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Another seed, other patients.", min=0)] = 0,
) -> None:
    """Make six small phantom sites, check them and draw their picture.

    Example: `smg demo --out demo`
    """
    from smg.cli.sites import make_phantoms, run_check
    from smg.report.sites import draw_sites, plain_tiles
    from smg.sites.labels import Labels
    from smg.sites.layouts import find_sites

    make_phantoms(out / "sites", small=True, seed=seed)
    sound = run_check(out / "sites", [], 2.0, as_json=False)
    picture = out / "sites.png"
    draw_sites(find_sites(out / "sites").values(), picture, plain_tiles(Labels()), subjects=6)
    print(f"The sites' picture: {picture}")
    if not sound:
        raise typer.Exit(1)
