"""Predict masks for many scans: threads read and prepare scans ahead of the network and finish its masks."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from smg.cores import cores
from smg.errors import Misuse, SmgError
from smg.evaluation.whole_scan import NotFinite, mask_of, scores_and_moments
from smg.learner.config import LearnerConfig
from smg.learner.familiarity import Familiar, nearest
from smg.networks.features import find_bottleneck
from smg.prepare.grid import Grid
from smg.prepare.prepared_site import Unusable, prepare_scan
from smg.prepare.slices import passes
from smg.sites.check import image_fault
from smg.sites.formats import Array
from smg.sites.volume import Volume, read_volume, same_grid

AT_A_TIME = 4  # threads, and scans queued before and after the network, to bound the memory


PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, eq=False)
class Prediction:
    """A scan's mask on the scan's own grid, and the scan's distance from the sites that the model has learned."""

    mask: Volume  # with the label values of the sites' masks
    distances: dict[str, float | None]  # of every site learned; None where it is not known (smg.learner.familiarity)
    nearest: str | None  # the site that the scan is most like
    unlike: bool | None  # whether the scan is unlike every site; None where it is not known
    millilitres: float  # of all foreground
    probabilities: Array | None = None  # [classes, k, j, i], where asked for
    volumes: dict[str, float] = field(default_factory=dict)  # millilitres of each class


Answer = tuple[Path, Prediction | SmgError]
Keep = Callable[[Path, Prediction], None]
Slices = tuple[Array, Grid]


class Predictor:
    """A network in memory, ready for any number of scans."""

    def __init__(self, network: nn.Module, config: LearnerConfig, familiar: Familiar) -> None:
        self.network, self.config, self.familiar = network, config, familiar
        self.bottleneck: str | None = None
        self.precision = torch.float32
        self.keeps_probabilities = False

    def use(self, precision: str) -> None:
        """Compute in `float32` or in `bfloat16`, which is faster on processors with instructions for it."""
        device = next(self.network.parameters()).device
        if precision not in PRECISIONS:
            raise Misuse(f"--precision {precision}: no such precision; give {' or '.join(PRECISIONS)}")
        if precision == "bfloat16":
            if not has_bfloat16(device):
                raise SmgError(
                    f"--precision bfloat16: this {'processor' if device.type == 'cpu' else device.type} has no "
                    "instructions for it, and would be slower; leave it out"
                )
            self.network = self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.precision = PRECISIONS[precision]

    def predict(self, *channels: Volume) -> Prediction:
        """Return the prediction of one scan, given as the volume of each of its channels."""
        images, grid = self._prepared(channels, ["the scan"] * len(channels))
        return self._decide(*self._pass(images), grid)

    def predict_all(self, scans: Iterable[Path | Sequence[Path]], keep: Keep | None = None) -> Iterator[Answer]:
        """Yield each scan's prediction or error, in order; `keep` is called in a thread and can write the mask.

        A scan of several channels is given as the files of all channels, and is named by the first file. The network
        runs in the calling thread, one pass at a time. Reading, preparing and writing run in threads meanwhile.
        """
        threads = min(AT_A_TIME, cores())
        with ThreadPoolExecutor(threads) as pool:
            ahead: deque[tuple[Path, Future[Slices]]] = deque()
            behind: deque[tuple[Path, Future[Prediction]]] = deque()
            for scan in scans:
                files = [scan] if isinstance(scan, Path) else list(scan)
                ahead.append((files[0], pool.submit(self._read, files)))
                if len(ahead) > threads:
                    behind.append(self._send(pool, *ahead.popleft(), keep))
                if len(behind) > threads:
                    yield _answer(*behind.popleft())
            while ahead or behind:
                if ahead:
                    behind.append(self._send(pool, *ahead.popleft(), keep))
                if len(behind) > threads or not ahead:
                    yield _answer(*behind.popleft())

    def _read(self, files: Sequence[Path]) -> Slices:
        return self._prepared([read_volume(file) for file in files], [str(file) for file in files])

    def _prepared(self, channels: Sequence[Volume], names: Sequence[str]) -> Slices:
        options = self.config.preparation
        if len(channels) != options.n_channels:
            wanted = ", ".join(options.channels or ("image",))
            raise SmgError(f"{names[0]}: {len(channels)} channels were given; the model needs {wanted}")
        for volume, name in zip(channels, names, strict=True):
            if reason := image_fault(volume.array):
                raise SmgError(f"{name}: {reason}")
            if reason := same_grid(channels[0], volume):
                raise SmgError(f"{name}: not on the grid of {names[0]}: {reason}")
        try:
            return prepare_scan(channels, options)
        except Unusable as error:
            raise SmgError(f"{names[0]}: {error}") from None

    def _send(
        self, pool: ThreadPoolExecutor, path: Path, read: Future[Slices], keep: Keep | None
    ) -> tuple[Path, Future[Prediction]]:
        """Pass a scan through the network, and submit the rest of its prediction to a thread."""
        try:
            images, grid = read.result()
            scores, moments = self._pass(images)
        except SmgError as error:
            if isinstance(error, NotFinite):
                error = SmgError(f"{path}: {error}")
            failed: Future[Prediction] = Future()
            failed.set_exception(error)
            return path, failed
        return path, pool.submit(self._finish, path, scores, moments, grid, keep)

    def _pass(self, images: Array) -> tuple[Array, Tensor]:
        """Return the scores of prepared slices and the scan's moments; raise an error if any is not finite."""
        slices, options = torch.from_numpy(images), self.config.preparation
        device = next(self.network.parameters()).device
        if self.bottleneck is None:
            _, first = next(passes(slices, options, 1))
            self.bottleneck = find_bottleneck(self.network, first.to(device))
        with torch.autocast(device.type, self.precision, enabled=self.precision != torch.float32):
            scores, moments = scores_and_moments(self.network, slices, self.bottleneck, options, self.config.mirror)
        if not moments.isfinite().all() or not self._measurable(moments):
            raise NotFinite(
                "its distance to a site is NaN or infinite, so that there is no mask; check its intensities"
            )
        return scores, moments

    def _measurable(self, moments: Tensor) -> bool:
        """Return whether every distance that is known is a finite number."""
        return all(math.isfinite(d) for d in self.familiar.distances(moments).values() if d is not None)

    def _finish(self, path: Path, scores: Array, moments: Tensor, grid: Grid, keep: Keep | None) -> Prediction:
        made = self._decide(scores, moments, grid)
        if keep:
            keep(path, made)
        return made

    def _decide(self, scores: Array, moments: Tensor, grid: Grid) -> Prediction:
        distances = self.familiar.distances(moments)
        classes = mask_of(scores, grid, self.config.largest_component)
        mask = Volume(self.config.preparation.labels.values(classes), grid.affine)
        names = self.config.preparation.labels.names
        counts = np.bincount(classes.ravel(), minlength=len(names) + 1)[1:]
        volumes = {name: float(n) * mask.voxel / 1000 for name, n in zip(names, counts, strict=True)}
        millilitres = np.count_nonzero(classes) * mask.voxel / 1000
        maps = grid.probabilities(scores) if self.keeps_probabilities else None
        unlike = self.familiar.unlike(distances)
        return Prediction(mask, distances, nearest(distances), unlike, millilitres, maps, volumes)


def has_bfloat16(device: torch.device) -> bool:
    """Return whether a device has instructions for bfloat16."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # torch has no public function for it.
    asked = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return device.type == "cpu" and any(ask() for ask in asked if ask)


def _answer(path: Path, made: Future[Prediction]) -> Answer:
    try:
        return path, made.result()
    except SmgError as error:
        return path, error
