"""A program of another environment: it has torch, MONAI and nibabel, and no smg. Run by path, by test_export.py.

    python outside.py jobs.json

runs the script of each export over its scans, asks MONAI about the bundles, and prints what it found as JSON.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch


def script_of(export: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"segment_of_{export.name}", export / "scripts" / "segment.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def as_monai_sees_it(bundle: Path, scans: Path, out: Path) -> dict[str, Any]:
    """What `monai.bundle` makes of a bundle: its workflow, its network with the weights, and the masks."""
    from monai.bundle import ConfigWorkflow, load, verify_net_in_out
    from monai.transforms import LoadImaged

    for name in [name for name in sys.modules if name.split(".")[0] == "scripts"]:
        del sys.modules[name]  # those of another bundle
    sys.path.insert(0, str(bundle))
    importlib.invalidate_caches()
    config, meta = str(bundle / "configs" / "inference.json"), str(bundle / "configs" / "metadata.json")
    places = {"bundle_root": str(bundle), "dataset_dir": str(scans), "output_dir": str(out), "device": "cpu"}
    workflow = ConfigWorkflow(config_file=config, meta_file=meta, workflow_type="infer", logging_file=False, **places)
    workflow.initialize()
    missing = workflow.check_properties()
    workflow.run()
    verify_net_in_out("network_def", meta_file=meta, config_file=config, device="cpu")
    network = load(bundle.name, bundle_dir=bundle.parent, workflow_type="inference", device="cpu")
    weights = torch.load(bundle / "models" / "model.pt", weights_only=True)
    segment = importlib.import_module("scripts.segment")
    file = str(next(scans.glob("*.nii.gz")))
    prepare = segment.PrepareScand("image", bundle / "preparation.json")
    loaded = LoadImaged("image", dtype=None, ensure_channel_first=True)({"image": file})
    same = np.array_equal(prepare({"image": file})["image"], prepare(loaded)["image"])
    sys.path.remove(str(bundle))
    return {
        "missing": missing,
        "loaded": all(torch.equal(t, weights[name]) for name, t in network.state_dict().items()),
        "same_from_loadimaged": same,
    }


def main() -> None:
    try:
        import smg  # noqa: F401
    except ImportError:
        pass
    else:
        raise SystemExit("smg is here: this proves nothing")
    jobs = json.loads(Path(sys.argv[1]).read_text())
    found: dict[str, Any] = {}
    for job in jobs:
        export, scans, out = (Path(job[key]) for key in ("export", "scans", "out"))
        found[export.name] = {"exit": script_of(export).main([str(scans), "--out", str(out), "--device", "cpu"])}
        if job["monai"]:
            found[export.name] |= as_monai_sees_it(export, scans, Path(job["monai"]))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
