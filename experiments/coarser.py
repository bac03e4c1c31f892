"""Copy sites with fewer grey levels, to test whether a claim fails because the data has only 256.

    python -m experiments.coarser data/prostate coarse --levels 32
    smg bench prostate-lite --data coarse --methods jm,sga+c --seeds 0 --out runs/coarse

If 32 levels in place of 256 change nothing, then 256 in place of the scanner's thousands did not either.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import nibabel as nib
import numpy as np

from experiments.mistakes import in_one_line
from smg.sites.layouts import find_sites


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a folder of sites in NIfTI")
    parser.add_argument("out", type=Path, help="a new folder")
    parser.add_argument("--levels", type=int, default=32, help="grey levels of a copied scan; default 32")
    options = parser.parse_args()
    for site in find_sites(options.data).values():
        for subject in site.subjects:
            place = options.out / subject.image.relative_to(options.data)
            place.parent.mkdir(parents=True, exist_ok=True)
            scan = nib.load(subject.image)
            values = np.asarray(scan.dataobj, dtype=np.float64)
            low, high = values.min(), values.max()
            steps = np.minimum((values - low) / (high - low) * options.levels, options.levels - 1).astype(np.uint8)
            coarse = nib.Nifti1Image(steps, scan.affine, scan.header, dtype=np.uint8)
            nib.save(coarse, place)
            shutil.copyfile(subject.mask, options.out / subject.mask.relative_to(options.data))
    print(f"{options.out}: {options.levels} grey levels")


if __name__ == "__main__":
    with in_one_line():
        main()
