"""Write phantom sites: random pelves, each site with its scan protocol, so that everything runs without a download."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from smg.cores import cores
from smg.errors import SmgError
from smg.files import write_json
from smg.phantom.anatomy import DIFFUSION, Pelvis, Scene, depict, spin_echo
from smg.phantom.canvas import Array, Grid, smooth_noise
from smg.randomness import numpy_generator
from smg.sites.nnunet_channels import numbered, write_description
from smg.sites.volume import Volume, write_volume

Span = tuple[float, float]
SMALL = 6  # subjects of each site in the small set
CHANNELS = ("T2", "ADC")


@dataclass(frozen=True)
class Protocol:
    """Scan protocol of one site. Each subject draws its own value from a span."""

    letter: str
    subjects: int
    spacing: Span  # mm between pixels, as stored
    thickness: Span  # mm between slices
    view: Span  # mm, width of the field of view
    sampled: float  # mm between acquired samples; the scanner interpolates to `spacing`
    tesla: tuple[float, ...]
    repetition: float  # ms, TR
    echo: Span  # ms, TE: a longer one darkens all tissue but fluid
    endorectal: bool = False
    aspect: float = 1.0  # ratio of a pixel's height to its width
    balloon: float = 0.1  # signal of the coil's balloon, relative to fat
    flare: float = 0.0  # gain of the endorectal coil at its surface, relative to the surface coil
    reach: float = 14.0  # mm over which that gain falls off
    tray: float = 0.3  # extra gain of the surface coil at the skin, front and back, relative to the centre
    shading: float = 0.08  # standard deviation of further unevenness of the gain
    noise: Span = (0.01, 0.02)  # of the complex signal, relative to fat at the centre
    blur: float = 0.3  # damping of the edge of k-space, 0 to 1
    saturated: float = 0.0  # mm in front of the gland beyond which signal is suppressed; 0: nowhere
    volume: float = 45.0  # ml, of a typical gland
    zones: bool = False  # whether the mask separates peripheral zone (1) and central gland (2)
    centre: float = 0.49  # place of the gland in the field of view, front to back
    fat: float = 1.0  # share of the fat's signal that is left: below 1 with fat suppression


PROTOCOLS: dict[str, Protocol] = {
    p.letter: p
    for p in (
        Protocol("A", 30, (0.6, 0.625), (3.6, 4.0), (192, 200), 0.75, (3.0,), 4000, (95, 110),
                 tray=0.5, shading=0.12, volume=58, zones=True),
        Protocol("B", 30, (0.39, 0.41), (3.0, 3.0), (148, 158), 0.60, (1.5,), 3500, (110, 130), endorectal=True,
                 balloon=0.05, flare=2.0, reach=24, noise=(0.02, 0.03), centre=0.45, zones=True),
        Protocol("C", 19, (0.55, 0.625), (1.25, 1.25), (195, 205), 0.85, (3.0,), 3600, (130, 145), aspect=0.82,
                 shading=0.2, noise=(0.03, 0.04), volume=30, centre=0.53),
        Protocol("D", 13, (0.325, 0.625), (3.0, 3.6), (180, 200), 0.70, (1.5, 3.0), 5000, (85, 100),
                 tray=1.2, noise=(0.01, 0.025), blur=0.6, volume=44, centre=0.50),
        Protocol("E", 12, (0.25, 0.28), (2.2, 3.0), (134, 140), 0.50, (3.0,), 4500, (95, 110), endorectal=True,
                 balloon=0.12, flare=3.0, reach=16, noise=(0.012, 0.02), blur=0.2, volume=42, centre=0.42),
        Protocol("F", 12, (0.6, 0.625), (3.6, 3.6), (196, 200), 0.85, (1.5,), 4500, (90, 105), endorectal=True,
                 balloon=0.9, flare=2.0, reach=16, noise=(0.01, 0.02), blur=0.4, saturated=44, volume=42),
        # Beyond the paper's: two sites that suppress the signal of fat. A network that learns others forgets the first,
        # and what it has forgotten is missing at the second.
        Protocol("G", 12, (0.6, 0.625), (3.6, 4.0), (192, 200), 0.75, (3.0,), 4000, (95, 110),
                 tray=0.5, shading=0.12, volume=58, fat=0.3),
        Protocol("H", 12, (0.5, 0.55), (3.0, 3.0), (180, 190), 0.80, (1.5,), 5000, (100, 120),
                 tray=0.8, shading=0.1, noise=(0.015, 0.025), blur=0.5, volume=44, centre=0.51, fat=0.3),
    )
}  # fmt: skip
SIX = ("A", "B", "C", "D", "E", "F")  # like the paper's sites


def draw(protocol: Protocol, rng: np.random.Generator, adc: np.random.Generator | None = None) -> tuple[Volume, ...]:
    """Return the scan and the mask of one random subject; with `adc`, a generator, an ADC map between the two.

    The map shows the same anatomy on the same grid. Scan and mask are the same with and without it.
    """
    pelvis = Pelvis.random(rng, protocol.volume, protocol.endorectal)
    spacing, thickness = rng.uniform(*protocol.spacing), rng.uniform(*protocol.thickness)
    stored = 16 * round(rng.uniform(*protocol.view) / spacing / 16)
    sampled = min(stored, 2 * round(stored * spacing / protocol.sampled / 2))
    x = (np.arange(sampled) / sampled - 0.5 + rng.normal(0, 0.01)) * stored * spacing
    y = (np.arange(sampled) / sampled - protocol.centre + rng.normal(0, 0.02)) * stored * spacing * protocol.aspect
    z = _levels(pelvis.gland[2], thickness, rng)
    grid = Grid.along(*(axis.astype(np.float32) for axis in (z, y, x)))

    signal = spin_echo(protocol.repetition, rng.uniform(*protocol.echo), float(rng.choice(protocol.tesla)))
    signal = {name: value * rng.lognormal(0, 0.16) for name, value in signal.items()}  # tissues vary between subjects
    signal |= {name: protocol.fat * signal[name] for name in ("fat", "marrow")}
    before = deepcopy(rng)
    scene = depict(pelvis, grid, signal | {"balloon": protocol.balloon}, 1.3 * protocol.sampled, rng)
    magnitude = _acquire(protocol, scene.signal * _gain(protocol, pelvis, grid, scene, rng), stored, rng)
    scale = rng.uniform(400, 1500) / np.percentile(magnitude[:, ::4, ::4], 99)  # a scanner's units are arbitrary
    image = np.clip(np.rint(magnitude * scale), 0, 32767).astype(np.int16)

    gland, central = (_onto(distance, stored) < 0 for distance in (scene.gland, scene.central))
    mask = gland.astype(np.uint8) + (gland & central if protocol.zones else 0)
    affine = _affine(spacing, spacing * protocol.aspect, thickness, (x[0], y[0], z[0]), rng)
    images = [image] if adc is None else [image, _diffusion(protocol, pelvis, grid, stored, before, adc)]
    return *(Volume(array, affine) for array in images), Volume(mask.astype(np.uint8), affine)


def _diffusion(
    protocol: Protocol, pelvis: Pelvis, grid: Grid, stored: int, anatomy: np.random.Generator, rng: np.random.Generator
) -> NDArray[np.int16]:
    """Return an ADC map in 1e-6 mm2/s. It is a ratio, so no coil shades it, but it is coarse and noisy.

    `anatomy` is the generator in the state in which the scan was painted, so that the same organs are painted again.
    Noise and each tissue's value come from `rng`.
    """
    signal = {name: value * rng.lognormal(0, 0.1) for name, value in DIFFUSION.items()}
    scene = depict(pelvis, grid, signal, 3 * protocol.sampled, anatomy)
    noisy = replace(protocol, noise=(0.1, 0.2), blur=0.9)
    return np.clip(np.rint(1000 * _acquire(noisy, scene.signal, stored, rng)), 0, 32767).astype(np.int16)


def _levels(half_height: float, thickness: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the heights of the slices: through the gland, and one to three more beyond its apex and its base."""
    below, above = rng.integers(1, 4, 2)
    offset = rng.uniform(0.05, 0.95)
    through = int(2 * half_height / thickness - offset) + 1
    return -half_height + thickness * (offset + np.arange(-below, through + above))


def _gain(protocol: Protocol, pelvis: Pelvis, grid: Grid, scene: Scene, rng: np.random.Generator) -> Array:
    """Return the receive gain at each place: of the surface coil near the skin, and of an endorectal coil around it."""
    y = grid.axes[1][None, :, None]
    near = np.exp(-np.clip(y + pelvis.skin, 0, None) / 25) + np.exp(-np.clip(90 - y, 0, None) / 25)
    gain = (1 + protocol.tray * rng.uniform(0.5, 1.5) * near) * np.exp(protocol.shading * smooth_noise(rng, grid, 60.0))
    if protocol.flare:
        gain = gain + protocol.flare / (1 + (scene.coil / np.float32(pelvis.rectum + protocol.reach)) ** 4)
    if protocol.saturated:
        gain = gain * (0.08 + 0.92 / (1 + np.exp(-(y + protocol.saturated) / 2)))
    return np.asarray(gain, np.float32)


def _acquire(protocol: Protocol, signal: Array, stored: int, rng: np.random.Generator) -> Array:
    """Return the magnitude image of a signal that is sampled in k-space, damped at its edge and zero-padded.

    Blur, ringing and Rician noise follow from that, as in a scanner.
    """
    sampled = signal.shape[-1]
    noise = rng.uniform(*protocol.noise) * rng.standard_normal((2, *signal.shape), dtype=np.float32)
    space = fft.fftshift(fft.fft2(signal + noise[0] + 1j * noise[1]), axes=(1, 2))
    ramp = np.abs(np.linspace(-1, 1, sampled, dtype=np.float32))
    window = 1 - protocol.blur * np.sin(ramp * np.float32(np.pi / 2)) ** 2
    space *= window[:, None] * window
    before = (stored - sampled) // 2
    pad = (before, stored - sampled - before)
    space = fft.ifftshift(np.pad(space, ((0, 0), pad, pad)), axes=(1, 2))
    return np.asarray(np.abs(fft.ifft2(space)) * (stored / sampled) ** 2, np.float32)


def _onto(distance: Array, stored: int) -> Array:
    """Return a distance field on the stored grid; it is smooth, so linear interpolation is enough."""
    sampled = distance.shape[-1]
    place = np.arange(stored) * sampled / stored
    low = np.minimum(place.astype(int), sampled - 2)
    weight = (place - low).astype(np.float32)
    rows = distance[:, low] * (1 - weight[:, None]) + distance[:, low + 1] * weight[:, None]
    return np.asarray(rows[:, :, low] * (1 - weight) + rows[:, :, low + 1] * weight)


def _affine(
    dx: float, dy: float, dz: float, first: tuple[float, float, float], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return the affine from (i, j, k) to millimetres. A quarter of the scans is oblique, along the rectal wall."""
    tilt = np.radians(rng.uniform(-12, 12)) if rng.random() < 0.25 else 0.0
    turn = np.array([[1, 0, 0], [0, np.cos(tilt), -np.sin(tilt)], [0, np.sin(tilt), np.cos(tilt)]])
    affine = np.eye(4)
    affine[:3, :3] = turn @ np.diag([dx, dy, dz])
    affine[:3, 3] = turn @ np.array(first) + rng.normal(0, 15, 3).round(1)
    return affine


def write_phantom_sites(
    out: Path,
    seed: int = 0,
    small: bool = False,
    progress: Callable[[str], None] | None = None,
    workers: int | None = None,
    letters: Iterable[str] = SIX,
    subjects: int | None = None,
    channels: int = 1,
    zones: bool = False,
) -> list[Path]:
    """Write the sites as OUT/A/Case00.nii.gz, OUT/A/Case00_segmentation.nii.gz and so on; return their folders.

    The same seed writes the same voxels with any number of workers. `small` writes the first six subjects of each site,
    and `subjects` the given number of them. Existing phantoms are not drawn again. A folder that holds anything but
    phantoms of this seed is refused, so that no file of the user is overwritten. With two `channels` each subject has
    an ADC map beside its T2 scan, in nnU-Net's layout: OUT/A/imagesTr/Case00_0001.nii.gz. With `zones` the masks of all
    sites separate peripheral zone (1) and central gland (2), and not only those of A and B; the scans are the same.
    `progress` is called with `SITE/CASE` after each subject.
    """
    _claim(out, seed, channels, zones)
    sites = [PROTOCOLS[letter] for letter in letters]
    limit = subjects if subjects is not None else SMALL if small else 10**9
    for protocol in sites if channels > 1 else ():
        labels = (
            {"background": 0, "peripheral": 1, "central": 2}
            if zones or protocol.zones
            else {"background": 0, "prostate": 1}
        )
        description = out / protocol.letter / "dataset.json"
        write_description(description, CHANNELS[:channels], labels, min(limit, protocol.subjects))
    jobs = [(out, seed, p.letter, subject, channels, zones) for p in sites for subject in range(min(limit, p.subjects))]
    workers = min(workers or cores(), len(jobs))
    report = progress or (lambda subject: None)
    if workers <= 1:
        for job in jobs:
            report(_write_subject(*job))
    else:
        # Spawned, since a fork of a process in which torch runs threads may deadlock.
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            for written in pool.map(_write_subject, *zip(*jobs, strict=True)):
                report(written)
    return [out / p.letter for p in sites]


def _claim(out: Path, seed: int, channels: int, zones: bool) -> None:
    """Mark a new or empty folder as one of phantoms; raise an error if it holds anything else."""
    mark = out / "phantoms.json"
    content = {"seed": seed} | ({"channels": channels} if channels > 1 else {}) | ({"zones": True} if zones else {})
    if mark.is_file():
        if json.loads(mark.read_text()) != content:
            other = "with other zones, or of another seed or number of channels"
            raise SmgError(f"{out}: holds phantom sites {other}; give a new folder")
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SmgError(f"{out}: exists and holds no phantom sites; give a new folder")
    else:
        write_json(mark, content)


def _write_subject(out: Path, seed: int, letter: str, subject: int, channels: int, zones: bool) -> str:
    """Write one subject, which depends on the seed, its site and its number alone; return `SITE/CASE`."""
    case, place = f"Case{subject:02d}", (seed, list(PROTOCOLS).index(letter), subject)
    if channels == 1:
        names = [case, f"{case}_segmentation"]
    else:
        names = [*(f"imagesTr/{case}_{numbered(i)}" for i in range(channels)), f"labelsTr/{case}"]
    files = [out / letter / f"{name}.nii.gz" for name in names]
    if not all(file.exists() for file in files):
        adc = numpy_generator("phantom ADC", *place) if channels > 1 else None
        protocol = replace(PROTOCOLS[letter], zones=zones or PROTOCOLS[letter].zones)
        volumes = draw(protocol, numpy_generator("phantom", *place), adc)
        for file, volume in zip(files, volumes, strict=True):
            write_volume(file, volume)
    return f"{letter}/{case}"
