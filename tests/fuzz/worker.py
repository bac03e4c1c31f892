"""One process that mutates files and reads them; it prints a line of JSON for each."""

from __future__ import annotations

import contextlib
import io
import json
import random
import resource
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from smg.errors import SmgError
from smg.learner.config_layers import configuration
from smg.learner.history import History
from smg.learner.learner import Learner
from smg.settings_file import read_settings
from smg.sites.layouts import find_sites
from smg.sites.volume import read_volume, source_files
from tests.fuzz.mutate import mutated
from tests.fuzz.seeds import KINDS

SECONDS = 5.0  # of processor time
BYTES = 1 << 30
HEAD = {"nii": 352, "mha": 400, "mhd": 400, "nrrd": 400, "dicom": 1500}
Check = Callable[[Any, Any], str | None]  # (result, result of the sound file) -> what was misread


class Hang(BaseException):
    """Raised after too much processor time."""


def case_of(seeds: Path, folder: Path, kind: str, number: int, seed: int) -> tuple[Path, bool]:
    """Write one mutated file of a kind; return what to read, and whether it was only cut."""
    rng = random.Random(f"{seed} {kind} {number}")
    if kind in ("dicom", "json", "safetensors"):
        source = seeds / ("dicom" if kind == "dicom" else "model")
        target = folder / source.name
        shutil.copytree(source, target)
        file = rng.choice(sorted(p for p in target.rglob("*") if p.is_file() and _is_of(p, kind)))
        made = target
    else:
        name = {"csv": "sites.csv", "yaml": "settings.yaml"}.get(kind, f"scan.{kind}")
        file = made = Path(shutil.copy(seeds / name, folder / name))
        if kind == "mhd":
            shutil.copy(seeds / "scan.zraw", folder / "scan.zraw")
        if kind == "csv":
            (folder / "site").symlink_to(seeds / "site")
    data, cut = mutated(file.read_bytes(), rng, HEAD.get(kind, 4000))
    file.write_bytes(data)
    return made, cut


def _is_of(path: Path, kind: str) -> bool:
    return kind == "dicom" or path.name.endswith((".json", ".jsonl") if kind == "json" else ".safetensors")


def read(kind: str, path: Path) -> Any:
    """Do what a command does with a file of this kind."""
    if kind == "csv":
        sites = find_sites(path).values()
        return sum(len(site.subjects) for site in sites), sum(len(site.faults) for site in sites)
    if kind == "yaml":
        return configuration(read_settings(str(path)).layer()).model_dump()
    if kind in ("json", "safetensors"):
        past = History(path)
        past.rounds(), past.lost(), past.stored(), past.under_way()
        learner = Learner(path)
        weights = learner.predictor().network.state_dict()
        kept = [p.images for ps in (*learner.replay().values(), *learner.sentinels().values()) for p in ps]
        return [t.numpy() for t in (*weights.values(), *kept)]
    source_files(path)
    volume = read_volume(path)
    return np.array(volume.array), volume.affine


def misread(kind: str, cut: bool, made: Any, sound: Any, path: Path) -> str | None:
    """Return in what a file was silently misread, if it was."""
    if kind == "safetensors":
        same = len(made) == len(sound) and all(np.array_equal(a, b) for a, b in zip(made, sound, strict=True))
        return None if same else "other tensors than were written"
    if kind in ("csv", "yaml", "json"):
        return None
    equal = made[0].shape == sound[0].shape and np.array_equal(made[0], sound[0]) and np.allclose(made[1], sound[1])
    if (cut or kind == "nii.gz") and not equal:
        return "other voxels or another geometry than before it was damaged"
    if kind == "dicom" and made[0].shape[0] != len(list(path.iterdir())):
        return f"{made[0].shape[0]} slices of {len(list(path.iterdir()))} files"
    if kind == "nii" and not equal:
        return _unlike_nibabel(made[0], path)
    return None


def _unlike_nibabel(array: Any, path: Path) -> str | None:
    """Return how our reading of a NIfTI file differs from nibabel's, where nibabel reads it at all."""
    import nibabel

    try:
        image = nibabel.load(path)
        theirs = np.asarray(image.dataobj).T.reshape(array.shape)  # type: ignore[attr-defined]
    except Exception:
        return None
    with np.errstate(all="ignore"):
        same = np.allclose(theirs.astype(float), array.astype(float), equal_nan=True)
    return None if same else "other voxels than nibabel reads"


def outcome(kind: str, path: Path, cut: bool, sound: Any) -> tuple[str, str]:
    """Return (`read`, `refused` or `finding`, detail) of one file."""
    silent = io.StringIO()
    begun = time.process_time()
    try:
        with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            made = read(kind, path)
            signal.setitimer(signal.ITIMER_PROF, 0)
    except (SmgError, ValidationError) as error:
        line = str(error)
        if "not enough memory" in line:
            return "finding", f"grew by over 1 GiB: {line[:200]}"
        return "refused", line[:200]
    except OSError as error:
        return ("refused", str(error)) if error.filename is not None else ("finding", f"traceback: {error!r}")
    except Hang:
        return "finding", f"no end after {time.process_time() - begun:.1f} s"
    except BaseException as error:
        return "finding", f"traceback: {type(error).__name__}: {str(error)[:200]}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    wrong = misread(kind, cut, made, sound, path)
    return ("finding", f"misread: {wrong}") if wrong else ("read", "")


def main(seeds: Path, folder: Path, first: int, last: int, seed: int) -> None:
    """Print an outcome for each case from `first` to `last`."""

    def on_time(*_: object) -> None:
        raise Hang

    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPROF, on_time)
    sound = {kind: read(kind, _sound(seeds, kind)) for kind in KINDS}
    used = int(next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmData")).split()[1])
    resource.setrlimit(resource.RLIMIT_DATA, ((used << 10) + BYTES, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    for number in range(first, last):
        kind, here = KINDS[number % len(KINDS)], folder / str(number)
        here.mkdir()
        path, cut = case_of(seeds, here, kind, number, seed)
        print(json.dumps({"begin": number, "kind": kind}), flush=True)
        what, detail = outcome(kind, path, cut, sound[kind])
        print(json.dumps({"end": number, "kind": kind, "what": what, "detail": detail}), flush=True)
        shutil.rmtree(here, ignore_errors=True)


def _sound(seeds: Path, kind: str) -> Path:
    named = {"csv": "sites.csv", "yaml": "settings.yaml", "dicom": "dicom", "json": "model", "safetensors": "model"}
    return seeds / named.get(kind, f"scan.{kind}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:6]))
