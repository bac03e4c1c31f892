"""The sound files that mutations start from: small scans, a table, settings, and a model that has learned a site."""

from __future__ import annotations

from pathlib import Path

import yaml

from smg.learner.config import LearnerConfig
from smg.learner.learner import Learner
from smg.sites.site import Site
from smg.sites.volume import write_volume
from tests.conftest import scan, write_site
from tests.dicom.made import write_series

TINY = {
    "iterations": 1, "batch": 2, "preparation": {"size": 16}, "network": {"width": 4, "depth": 1}, "validate_every": 1,
}  # fmt: skip
KINDS = ("nii", "nii.gz", "mha", "mhd", "nrrd", "dicom", "csv", "yaml", "json", "safetensors")


def write_seeds(folder: Path) -> None:
    """Write one sound file, or folder, of each kind."""
    image, _ = scan(3)
    for suffix in ("nii", "nii.gz", "mha", "mhd", "nrrd"):
        write_volume(folder / f"scan.{suffix}", image)
    write_series(folder / "dicom", image.array.clip(0))
    write_site(folder / "site", 4)
    rows = [f"A,c{n},site/Case{n:02d}.nii.gz,site/Case{n:02d}_segmentation.nii.gz" for n in range(4)]
    (folder / "sites.csv").write_text("\n".join(["site,case,image,mask", *rows]) + "\n")
    settings = TINY | {"method": "sga+c", "augment": {"preset": "mild"}, "optimiser": {"rate": 0.01}}
    (folder / "settings.yaml").write_text(yaml.safe_dump(settings | {"replay": {"subjects": 2}}))
    learner = Learner.create(folder / "model", LearnerConfig.model_validate(TINY))
    learner.learn(Site.find(folder / "site"))
