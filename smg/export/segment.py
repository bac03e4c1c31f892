"""Segment scans with an exported model, in an environment without the program that trained it.

    python scripts/segment.py SCAN.nii.gz ... --out masks

Needs torch, monai, numpy, scipy and nibabel (and onnxruntime where the weights are models/model.onnx). It reads
`preparation.json` and the weights beside it, writes a mask for each scan on the scan's own grid, and does exactly what
`smg predict` does. Scans of several channels are named NAME_0000, NAME_0001, ...; give any one of them.

For MONAI, `PrepareScand`, `RestoreMaskd` and `SaveMaskd` are transforms, `SliceScores` and `WindowScores` inferers,
and `Segmenter` the loop that `configs/inference.json` runs. Arrays are [slice, row, column] with slices from the feet
up, rows from the front back and columns from the patient's right to the left; affines lead from (i, j, k) to
millimetres in LPS.

Not a medical device. License of this file: Apache-2.0.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import sys
import zlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import torch
from monai.data import MetaTensor
from monai.inferers import Inferer, SliceInferer
from monai.transforms import Compose, MapTransform
from nibabel.filebasedimages import ImageFileError
from scipy import ndimage, sparse
from torch import Tensor, nn
from torch.nn import functional

Array = np.ndarray[Any, Any]
Settings = dict[str, Any]  # what preparation.json holds

RAS_TO_LPS = np.diag([-1.0, -1.0, 1.0, 1.0])
TO_MILLIMETRES = {1: 1e3, 2: 1.0, 3: 1e-3}  # by NIfTI's code of units
NUMBERED = re.compile(r"_(\d{4})$")  # how a channel's file is named


# --- the network ------------------------------------------------------------------------------------------------------


class UNet(nn.Module):
    """A 2-D U-Net: images [B, channels, H, W] to logits [B, classes, H, W]."""

    def __init__(
        self,
        channels: int = 1,
        classes: int = 2,
        width: int = 32,
        depth: int = 4,
        norm: str = "instance",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        filters = [width * 2**level for level in range(depth + 1)]
        falling, rising = pairwise([channels, *filters[:-1]]), filters[-2::-1]
        self.encoder = nn.ModuleList(_two_convolutions(a, b, norm, dropout) for a, b in falling)
        self.bottleneck = _two_convolutions(filters[-2], filters[-1], norm, dropout)
        self.upward = nn.ModuleList(nn.ConvTranspose2d(2 * f, f, kernel_size=2, stride=2) for f in rising)
        self.decoder = nn.ModuleList(_two_convolutions(2 * f, f, norm, dropout) for f in rising)
        self.head = nn.Conv2d(width, classes, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for level in self.encoder:
            x = level(x)
            skips.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.bottleneck(x)
        for up, level in zip(self.upward, self.decoder, strict=True):
            skip = skips.pop()
            x = level(torch.cat([skip, _grown_to(skip, up(x))], dim=1))
        return self.head(x)


def _two_convolutions(incoming: int, outgoing: int, norm: str, dropout: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for filters in (incoming, outgoing):
        layers.append(nn.Conv2d(filters, outgoing, kernel_size=3, padding=1, bias=False))
        layers.append(nn.BatchNorm2d(outgoing) if norm == "batch" else nn.GroupNorm(outgoing, outgoing))
        layers += [nn.Dropout(dropout)] if dropout else []
        layers.append(nn.ReLU())
    return nn.Sequential(*layers)


def _grown_to(skip: Tensor, x: Tensor) -> Tensor:
    """Repeat the last row and column where pooling dropped one of an odd side."""
    missing = [skip.shape[-1] - x.shape[-1], skip.shape[-2] - x.shape[-2]]
    return functional.pad(x, [0, missing[0], 0, missing[1]], mode="replicate") if any(missing) else x


def build_network(about: Settings) -> nn.Module:
    """Build the network that preparation.json names: the U-Net above, or one of MONAI's."""
    if about["name"] == "unet":
        return UNet(**{key: value for key, value in about.items() if key != "name"})
    from monai.networks import nets

    return getattr(nets, about["name"])(**about["arguments"])


class OnnxNetwork(nn.Module):
    """A network that onnxruntime runs."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        import onnxruntime

        self.session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def forward(self, x: Tensor) -> Tensor:
        (logits,) = self.session.run(None, {"images": x.cpu().numpy()})
        return torch.from_numpy(logits).to(x.device)


def load_network(root: Path, settings: Settings) -> nn.Module:
    """Load the network with its weights from an export's folder."""
    if not (path := root / "models" / "model.pt").is_file():
        return OnnxNetwork(root / "models" / "model.onnx")
    network = build_network(settings["network"])
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return network


# --- a scan's grid, and the prepared one ------------------------------------------------------------------------------


def read_scan(path: Path) -> tuple[Array, Array]:
    """Read a NIfTI file: voxels as stored, [k, j, i], and the affine in LPS millimetres."""
    image = nib.load(path)
    array = np.asanyarray(image.dataobj)
    while array.ndim > 3 and array.shape[-1] == 1:
        array = array[..., 0]
    if array.ndim != 3:
        raise ValueError(f"{path}: has {array.ndim} dimensions; a scan has three")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{path}: some voxels are NaN or infinite")
    if array.min() == array.max():
        raise ValueError(f"{path}: constant image: every voxel has the same value")
    return array.transpose(), _affine(image.header)


def _affine(header: Any) -> Array:
    if header["sform_code"] > 0:
        affine = header.get_sform()
    elif header["qform_code"] > 0:
        sound = header.copy()
        sound["pixdim"][0] = -1 if header["pixdim"][0] < 0 else 1
        affine = sound.get_qform()
    else:  # spacing alone: the scan lies as it is stored
        affine = RAS_TO_LPS @ np.diag([*header["pixdim"][1:4].astype(float), 1.0])
    scale = TO_MILLIMETRES.get(int(header["xyzt_units"]) & 7, 1.0)
    return np.asarray(RAS_TO_LPS @ np.diag([scale, scale, scale, 1.0]) @ affine)


class Grid:
    """A scan's grid (shape [k, j, i] and affine) beside the prepared one."""

    def __init__(self, shape: Sequence[int], affine: Array, settings: Settings) -> None:
        towards = affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)  # rows L, P, S; columns i, j, k
        best = max(itertools.permutations(range(3)), key=lambda ijk: sum(abs(towards[w, ijk[w]]) for w in range(3)))
        left, back, head = best
        backwards = [towards[world, axis] < 0 for world, axis in ((2, head), (1, back), (0, left))]
        self.axes = (2 - head, 2 - back, 2 - left)  # of the stored array, in the order slice, row, column
        self.flips = tuple(axis for axis in range(3) if backwards[axis])
        self.rows, self.columns = (int(shape[axis]) for axis in self.axes[1:])
        steps = np.linalg.norm(affine[:3, :3], axis=0)
        pixel = [float(steps[2 - axis]) for axis in self.axes[1:]]
        self.whole, self.box = self._prepared(pixel, settings["resample"])

    def _prepared(self, pixel: list[float], resample: Settings) -> tuple[tuple[int, int], tuple[slice, slice]]:
        """Return rows and columns at the prepared resolution, and the place of the field in them."""
        if resample["spacing"] is None:
            rows, columns = resample["size"]
            return (rows, columns), (slice(0, rows), slice(0, columns))
        sides, spacing, field = (self.rows, self.columns), resample["spacing"], resample["field"]
        whole = [max(1, round(count * mm / spacing)) for count, mm in zip(sides, pixel, strict=True)]
        box = []
        for length in whole:
            kept = length if field is None else max(1, round(field / spacing))
            start = max(0, (length - kept) // 2)
            box.append(slice(start, min(start + kept, length)))
        return (whole[0], whole[1]), (box[0], box[1])

    def image(self, array: Array) -> Array:
        """Return a scan's voxels on the prepared grid: [slices, rows, columns] float32."""
        axial = np.ascontiguousarray(np.flip(array.transpose(self.axes), self.flips), np.float32)
        return np.array(resize(axial, *self.whole)[:, *self.box], order="C")

    def back(self, scores: Array) -> Array:
        """Return class scores [slices, classes, rows, columns] as class indices on the scan's own grid."""
        mask = np.empty((len(scores), self.rows, self.columns), np.uint8)
        for decided, of_slice in zip(mask, scores, strict=True):
            decided[:] = resize(self._uncut(of_slice), self.rows, self.columns).argmax(axis=0)
        return np.ascontiguousarray(np.flip(mask, self.flips).transpose(np.argsort(self.axes)))

    def _uncut(self, cut: Array) -> Array:
        if cut.shape[-2:] == self.whole:
            return cut
        whole = np.zeros((*cut.shape[:-2], *self.whole), cut.dtype)
        whole[0] = 1  # outside the field all is background
        whole[..., *self.box] = cut
        return whole


@lru_cache(maxsize=64)
def resize_matrix(source: int, target: int) -> Any:
    """Return a triangle filter: linear interpolation upwards, averaging downwards; pixel centres are aligned."""
    scale = source / target
    centres = (np.arange(target) + 0.5) * scale - 0.5
    weights = np.clip(1.0 - np.abs(np.arange(source)[None, :] - centres[:, None]) / max(scale, 1.0), 0.0, None)
    return sparse.csr_matrix((weights / weights.sum(axis=1, keepdims=True)).astype(np.float32))


def resize(slices: Array, rows: int, columns: int) -> Array:
    """Return an array [..., h, w] resized to [..., rows, columns], float32."""
    slices = np.asarray(slices, np.float32)
    height, width = slices.shape[-2:]
    if (height, width) == (rows, columns):
        return slices
    w_r, w_c = resize_matrix(height, rows), resize_matrix(width, columns)
    out = np.empty((*slices.shape[:-2], rows, columns), np.float32)
    for at in np.ndindex(slices.shape[:-2]):
        out[at] = (w_c @ (w_r @ slices[at]).T).T
    return out


# --- there and back ---------------------------------------------------------------------------------------------------


def prepare(channels: Sequence[Array], affine: Array, settings: Settings) -> Tensor:
    """Return a scan's channels, each [k, j, i], as network input: [adjacent x channels, slices, rows, columns]."""
    grid = Grid(channels[0].shape, affine, settings)
    prepared = []
    for given in channels:
        clip = settings["clip"]
        images = grid.image(given if clip is None else np.clip(given, *np.percentile(given, clip)))
        for part in images if settings["normalise"] == "slice" else [images]:
            _normalise(part.reshape(-1), settings["constant"])
        prepared.append(images)
    slices = torch.from_numpy(np.stack(prepared, axis=1))  # [slices, channels, rows, columns]
    adjacent = settings["adjacent"]
    offsets = torch.arange(adjacent) - adjacent // 2
    neighbours = (torch.arange(len(slices))[:, None] + offsets).clamp(0, len(slices) - 1)
    return slices[neighbours].flatten(1, 2).transpose(0, 1).contiguous()


def _normalise(values: Array, constant: float) -> None:
    """Give values zero mean and unit variance, in place; values that are constant up to rounding become zero."""
    largest = max(values.max(), -values.min())
    values -= values.mean()
    deviation = np.sqrt(values @ values / len(values))
    if deviation > constant * largest:
        values /= deviation
    else:
        values[:] = 0


def restore(scores: Tensor, shape: Sequence[int], affine: Array, settings: Settings) -> Array:
    """Return class scores [classes, slices, rows, columns] as a mask on the scan's grid, in the labels' values."""
    grid = Grid(shape, affine, settings)
    mask = grid.back(np.ascontiguousarray(scores.cpu().numpy().swapaxes(0, 1)))
    if settings["largest_component"]:
        mask = _keep_largest(mask)
    values = [label["value"] for label in settings["labels"]]
    return np.array(values, np.uint8 if min(values) >= 0 and max(values) < 256 else np.int32)[mask]


def _keep_largest(mask: Array) -> Array:
    """Keep of each class only its largest component (voxels that share a face); of equal ones the first."""
    kept = np.zeros_like(mask)
    for number, box in enumerate(ndimage.find_objects(mask), start=1):
        if box is not None:
            components, _ = ndimage.label(mask[box] == number)
            kept[box][components == 1 + np.bincount(components.ravel())[1:].argmax()] = number
    return kept


def probabilities(network: Callable[[Tensor], Any], images: Tensor, mirror: bool) -> Tensor:
    """Return the network's softmax; with `mirror`, its mean with that of the image mirrored left to right."""
    scores = _softmax(network(images), images)
    return (scores + _softmax(network(images.flip(-1)), images).flip(-1)) / 2 if mirror else scores


def _softmax(output: Any, images: Tensor) -> Tensor:
    if isinstance(output, Mapping):
        output = output["out"]
    if isinstance(output, Tensor) and output.ndim == 5:  # deep supervision of DynUNet: the main output first
        output = output[:, 0]
    outputs = output if isinstance(output, Sequence) else [output]
    logits = [o for o in outputs if o.ndim == 4 and o.shape[2:] == images.shape[2:]][-1]
    if logits.shape[1] == 1:
        logits = torch.cat([-logits, logits], dim=1) / 2
    return logits.softmax(dim=1)


# --- for MONAI --------------------------------------------------------------------------------------------------------


def read_settings(settings: Settings | str | Path) -> Settings:
    """Return the content of preparation.json, given as a dictionary or as the file's path."""
    return settings if isinstance(settings, dict) else json.loads(Path(settings).read_text())


class PrepareScand(MapTransform):  # type: ignore[misc]
    """A scan as the network takes it: [channels, slices, rows, columns], with its own grid in the tensor's meta.

    The scan is a file, a list of files (one a channel), or an image as MONAI's LoadImaged makes it, [channels, i, j, k]
    with an affine; then `dtype=None` there keeps what is stored.
    """

    def __init__(self, keys: Hashable | Sequence[Hashable], preparation: Settings | str | Path) -> None:
        super().__init__(keys)
        self.settings = read_settings(preparation)

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        made = dict(data)
        for key in self.key_iterator(made):
            given = made[key]
            if isinstance(given, MetaTensor):
                channels = [one.transpose() for one in np.asarray(given)]
                affine, name = RAS_TO_LPS @ np.asarray(given.affine), Path(given.meta["filename_or_obj"])
                files = [name]
            else:
                files = [Path(one) for one in (given if isinstance(given, list | tuple) else [given])]
                scans = [read_scan(file) for file in files]
                channels, affine, name = [array for array, _ in scans], scans[0][1], _case(files[0], len(files))
            if len(channels) != len(self.settings["channels"]):
                wanted = ", ".join(self.settings["channels"])
                raise ValueError(f"{name}: {len(channels)} channels were given; the model needs {wanted}")
            if len({one.shape for one in channels}) > 1:
                raise ValueError(f"{name}: its channels do not lie on one grid")
            prepared = prepare(channels, affine, self.settings)
            grid = {"scan_shape": list(channels[0].shape), "scan_affine": torch.from_numpy(affine)}
            about = {"filename_or_obj": str(name), "scan_file": str(files[0]), **grid}
            made[key] = MetaTensor(prepared, meta=about)
        return made


class RestoreMaskd(MapTransform):  # type: ignore[misc]
    """Class scores [classes, slices, rows, columns] as a mask [1, i, j, k] on the grid of the scan under `source`."""

    def __init__(
        self, keys: Hashable | Sequence[Hashable], preparation: Settings | str | Path, source: Hashable = "image"
    ) -> None:
        super().__init__(keys)
        self.settings, self.source = read_settings(preparation), source

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        made = dict(data)
        meta = made[self.source].meta
        affine = np.asarray(meta["scan_affine"])
        for key in self.key_iterator(made):
            mask = restore(made[key], meta["scan_shape"], affine, self.settings).transpose()[None].copy()
            about = {"filename_or_obj": meta["filename_or_obj"]}
            made[key] = MetaTensor(mask, affine=RAS_TO_LPS @ affine, meta=about)
        return made


class SaveMaskd(MapTransform):  # type: ignore[misc]
    """Writes a mask [1, i, j, k] as OUT/NAME, with the geometry of its scan's header, number for number.

    (MONAI 1.6's SaveImaged fails on scans that are stored in sagittal order, and writes the geometry in its own way.)
    """

    def __init__(self, keys: Hashable | Sequence[Hashable], output_dir: str | Path, source: Hashable = "image") -> None:
        super().__init__(keys)
        self.folder, self.source = Path(output_dir), source

    def __call__(self, data: Mapping[Hashable, Any]) -> Mapping[Hashable, Any]:
        meta = data[self.source].meta
        for key in self.key_iterator(data):
            scan, target = Path(meta["scan_file"]), self.folder / Path(meta["filename_or_obj"]).name
            if target.resolve() == scan.resolve():
                raise ValueError(f"{scan}: the mask would overwrite the scan; give another folder")
            write_mask(target, np.asarray(data[key][0]), scan)
            print(target)
        return data


class SliceScores(SliceInferer):  # type: ignore[misc]
    """Probabilities [B, classes, slices, N, N] slice by slice, for slices that were resized to the network's size."""

    def __init__(self, preparation: Settings | str | Path) -> None:
        settings = read_settings(preparation)
        super().__init__(spatial_dim=0, roi_size=settings["resample"]["size"], sw_batch_size=settings["at_once"])
        self.mirror = settings["mirror"]

    def __call__(self, inputs: Tensor, network: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return super().__call__(_plain(inputs), lambda images: probabilities(network, images, self.mirror))


class WindowScores(Inferer):  # type: ignore[misc]
    """Probabilities [B, classes, slices, rows, columns] from windows that overlap, averaged with Gaussian weights.

    MONAI's SlidingWindowInferer lays its windows elsewhere (the last at the edge, the others in even steps from the
    first) and pads odd sides on the other side, so that masks would differ.
    """

    def __init__(self, preparation: Settings | str | Path) -> None:
        super().__init__()
        settings = read_settings(preparation)
        self.windows, self.at_once, self.mirror = settings["windows"], settings["at_once"], settings["mirror"]

    def __call__(self, inputs: Tensor, network: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return torch.stack([self._scores(volume, network) for volume in _plain(inputs)])

    def _scores(self, volume: Tensor, network: Callable[..., Any]) -> Tensor:
        slices, size = volume.transpose(0, 1), self.windows["size"]
        rows, columns = slices.shape[-2:]
        corners = [(top, left) for top in self._starts(rows) for left in self._starts(columns)]
        where = [(number, corner) for number in range(len(slices)) for corner in corners]
        sums, weights = torch.zeros(0), torch.zeros(rows, columns)
        for start in range(0, len(where), self.at_once):
            some = where[start : start + self.at_once]
            images = torch.stack([_cut(slices[number], corner, size) for number, corner in some])
            scores = probabilities(network, images, self.mirror).cpu()
            if not len(sums):
                sums = torch.zeros(len(slices), scores.shape[1], rows, columns)
            for (number, (top, left)), window in zip(some, scores, strict=True):
                down, across = slice(max(top, 0), top + size), slice(max(left, 0), left + size)
                inside = slice(max(-top, 0), rows - top), slice(max(-left, 0), columns - left)
                if size >= max(rows, columns):  # one window covers the slice
                    sums[number, :, down, across] = window[:, *inside]
                    continue
                weight = self._gaussian()[inside]
                sums[number, :, down, across] += window[:, *inside] * weight
                if number == 0:
                    weights[down, across] += weight
        if weights.any():
            sums /= weights
        return sums.transpose(0, 1)

    def _starts(self, length: int) -> list[int]:
        size = self.windows["size"]
        if length <= size:
            return [(length - size) // 2]
        steps = math.ceil((length - size) / (size * (1 - self.windows["overlap"])))
        return [round(step * (length - size) / steps) for step in range(steps + 1)]

    def _gaussian(self) -> Tensor:
        size = self.windows["size"]
        at = (torch.arange(size) - (size - 1) / 2) / (size * self.windows["sigma"])
        line = torch.exp(-(at**2) / 2)
        return torch.outer(line, line).clamp_min(self.windows["least"])


def _plain(images: Tensor) -> Tensor:
    """Return a tensor without MONAI's metadata, which costs time in every layer."""
    return images.as_tensor() if isinstance(images, MetaTensor) else images


def _cut(image: Tensor, corner: tuple[int, int], size: int) -> Tensor:
    """Return a window of an image [channels, rows, columns]; beyond the image its edge is repeated."""
    (top, left), (rows, columns) = corner, image.shape[-2:]
    down = torch.arange(top, top + size).clamp(0, rows - 1)
    across = torch.arange(left, left + size).clamp(0, columns - 1)
    return image[..., down[:, None], across]


def inferer_of(preparation: Settings | str | Path) -> Inferer:
    """Return the inferer that belongs to a model."""
    settings = read_settings(preparation)
    return SliceScores(settings) if settings["windows"] is None else WindowScores(settings)


class Segmenter:
    """Goes through a dataset of prepared scans; MONAI's evaluator without its engine."""

    def __init__(
        self,
        dataset: Iterable[Any],
        network: nn.Module,
        inferer: Inferer,
        postprocessing: Callable[[Any], Any],
        device: torch.device | str = "cpu",
    ) -> None:
        self.dataset, self.inferer, self.postprocessing = dataset, inferer, postprocessing
        self.network, self.device = network.to(device).eval(), device

    def run(self) -> list[Any]:
        """Segment every scan; return what the postprocessing makes of each."""
        made = []
        with torch.no_grad():
            for item in self.dataset:
                scores = self.inferer(item["image"][None].to(self.device), self.network)[0]
                made.append(self.postprocessing({**item, "pred": scores}))
        return made


# --- files ------------------------------------------------------------------------------------------------------------


def find_scans(places: Sequence[str | Path], n_channels: int) -> list[list[str]]:
    """Return the files of each scan, a list of its channels; a folder stands for the NIfTI files in it."""
    files: list[Path] = []
    for place in map(Path, places):
        files += sorted(place.glob("*.nii*")) if place.is_dir() else [place]
    if n_channels == 1:
        return [[str(file)] for file in files]
    groups: dict[Path, list[str]] = {}
    for file in files:
        stem, ending = _stem(file)
        case = NUMBERED.sub("", stem)
        groups[file.with_name(case)] = [
            str(file.with_name(f"{case}_{number:04d}{ending}")) for number in range(n_channels)
        ]
    return list(groups.values())


def _stem(file: Path) -> tuple[str, str]:
    ending = ".nii.gz" if file.name.endswith(".nii.gz") else file.suffix
    return file.name.removesuffix(ending), ending


def _case(file: Path, n_channels: int) -> Path:
    stem, ending = _stem(file)
    return file if n_channels == 1 else file.with_name(NUMBERED.sub("", stem) + ending)


def write_mask(path: Path, mask: Array, like: Path) -> None:
    """Write a mask [i, j, k] with the geometry of the scan's header and nothing else of it."""
    scan = nib.load(like).header
    image = nib.Nifti1Image(mask, None, dtype=mask.dtype)
    for key in ("sform_code", "srow_x", "srow_y", "srow_z", "qform_code", "quatern_b", "quatern_c", "quatern_d",
                "qoffset_x", "qoffset_y", "qoffset_z", "xyzt_units"):  # fmt: skip
        image.header[key] = scan[key]
    image.header["pixdim"][:4] = scan["pixdim"][:4]
    path.parent.mkdir(parents=True, exist_ok=True)
    image.to_filename(path)


def main(words: Sequence[str] | None = None) -> int:
    """Segment the scans that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scans", nargs="+", help="NIfTI files, or folders of them")
    parser.add_argument("--out", type=Path, required=True, help="the folder for the masks")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args(words)
    root = Path(__file__).resolve().parents[1]
    settings = read_settings(root / "preparation.json")
    prepare_scan, network, inferer = PrepareScand("image", settings), load_network(root, settings), inferer_of(settings)
    finish = Compose([RestoreMaskd("pred", settings), SaveMaskd("pred", given.out)])
    failed, first = 0, dict[str, str]()  # the name of a mask -> its scan
    found = find_scans(given.scans, len(settings["channels"]))
    originals = {Path(file).resolve() for files in found for file in files}
    for files in found:
        name = _case(Path(files[0]), len(settings["channels"])).name
        if (given.out / name).resolve() in originals:
            print(
                f"{files[0]}: its mask would replace the scan {given.out / name}; give another --out", file=sys.stderr
            )
            failed += 1
            continue
        if first.setdefault(name, files[0]) != files[0]:
            print(f"{files[0]}: its mask would be the file of {first[name]}; give another --out", file=sys.stderr)
            failed += 1
            continue
        try:
            Segmenter([prepare_scan({"image": files})], network, inferer, finish, given.device).run()
        except (OSError, EOFError, ValueError, zlib.error, ImageFileError) as error:  # the others go on
            print(f"{files[0]}: {error}" if files[0] not in str(error) else error, file=sys.stderr)
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
