"""Write an export: a folder with the weights, how to use them, a program that does, and the model card.

    README.md               the model card
    preparation.json        how a scan is prepared and a mask put back
    scripts/segment.py      a program that does it, without smg
    models/                 model.pt and model.safetensors, or model.onnx
    configs/                metadata.json and inference.json, in a MONAI bundle

Bundles are written and never opened: what their configurations say after a `$` is code.
"""

from __future__ import annotations

import hashlib
import os
from importlib import resources
from pathlib import Path

import torch

from smg.errors import SmgError
from smg.export import Kind
from smg.export.bundle import inference, metadata
from smg.export.card import card
from smg.export.graph import write_onnx
from smg.export.nnunet_results import check, write_results
from smg.export.preparation import preparation
from smg.export.release import Release
from smg.files import folder_in, naming, write_json
from smg.learner.sealing import save_tensors
from smg.networks.build import LISTED


def export(release: Release, kind: Kind, out: Path) -> list[Path]:
    """Write a version of a model for other programs; return the files, relative to `out`, which appears whole."""
    name = release.config.network.name
    if kind == "nnunet":
        check(release)
    elif release.config.preparation.nnunet is not None:
        raise SmgError(f"--as {kind}: its script cannot prepare scans in nnU-Net's way; --as nnunet can")
    elif len({*(release.config.preparation.window or ())}) > 1 or len({*(release.config.preparation.pixel or ())}) > 1:
        raise SmgError(f"--as {kind}: its script knows square windows and one spacing; use `smg predict`")
    if kind in ("torch", "monai-bundle") and name in LISTED:
        raise SmgError(f"--as {kind}: its script has no network {name}; --as onnx has its graph")
    if kind != "onnx" and ":" in name:
        raise SmgError(f"network {name} is a program of your own, which an export cannot hold; --as onnx has its graph")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SmgError(f"{out}: is there already; give a new folder")
    with naming(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with folder_in(out.parent) as parent:
            folder = parent / "export"
            _write(release, kind, folder)
            if out.exists():
                out.rmdir()
            os.replace(folder, out)
    return sorted(path.relative_to(out) for path in out.rglob("*") if path.is_file())


def _write(release: Release, kind: Kind, folder: Path) -> None:
    if kind == "nnunet":
        checkpoint = write_results(release, folder)
        hashes = {str(checkpoint.relative_to(folder)): _sha256(checkpoint)}
        (folder / "README.md").write_text(card(release, hashes))
        return
    (folder / "models").mkdir(parents=True)
    (folder / "scripts").mkdir()
    if kind == "onnx":
        write_onnx(release, folder / "models" / "model.onnx")
    else:
        weights = release.weights()
        torch.save(weights, folder / "models" / "model.pt")
        save_tensors(folder / "models" / "model.safetensors", weights)
    settings = preparation(release)
    write_json(folder / "preparation.json", settings, sort_keys=False)
    script = resources.files("smg.export") / "segment.py"
    (folder / "scripts" / "segment.py").write_text(script.read_text())
    if kind == "monai-bundle":
        (folder / "scripts" / "__init__.py").write_text("")
        (folder / "configs").mkdir()
        write_json(folder / "configs" / "metadata.json", metadata(release), sort_keys=False)
        write_json(folder / "configs" / "inference.json", inference(settings), sort_keys=False)
    hashes = {f"models/{path.name}": _sha256(path) for path in sorted((folder / "models").iterdir())}
    (folder / "README.md").write_text(card(release, hashes))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
