"""A male pelvis as soft shapes in millimetres.

The gland's centre is the origin: +x left, +y posterior, +z superior. A `Pelvis` is one subject's random shape. `depict`
paints it over a grid from the skin inwards, later organs over earlier ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from smg.phantom.canvas import Array, Canvas, Grid, Part, Triple, implicit, meet, mirrored, smooth_noise, tube

# Proton density, T1 and T2 (ms) at 3 T. The T2 of fat is the long one seen with a train of refocusing pulses.
TISSUES: dict[str, Triple] = {
    "cortex": (0.06, 1000, 20),
    "muscle": (0.85, 1400, 42),
    "fibrous": (0.75, 1300, 48),
    "wall": (0.85, 1500, 62),
    "fat": (0.90, 380, 135),
    "marrow": (0.66, 450, 105),
    "vein": (0.90, 1700, 125),
    "erectile": (0.90, 1700, 130),
    "mucosa": (0.90, 1600, 120),
    "stool": (0.75, 1100, 60),
    "fluid": (1.00, 3800, 900),
    "central": (0.88, 1600, 74),
    "nodule": (0.90, 1600, 115),
    "peripheral": (0.92, 1700, 106),
    "lesion": (0.85, 1500, 62),
    "vesicle": (0.95, 2400, 300),
}

# Apparent diffusion coefficients in 1e-3 mm2/s. Fat is suppressed, and the coil's balloon contains no water.
DIFFUSION: dict[str, float] = {
    "cortex": 0.05,
    "muscle": 1.25,
    "fibrous": 0.95,
    "wall": 1.15,
    "fat": 0.15,
    "marrow": 0.35,
    "vein": 1.80,
    "erectile": 1.60,
    "mucosa": 1.50,
    "stool": 0.90,
    "fluid": 2.90,
    "central": 1.25,
    "nodule": 1.45,
    "peripheral": 1.75,
    "lesion": 0.80,
    "vesicle": 2.00,
    "balloon": 0.05,
}


def spin_echo(repetition: float, echo: float, tesla: float) -> dict[str, float]:
    """Return each tissue's signal in a T2-weighted spin echo, relative to fat.

    A weaker field has a shorter T1 and a longer T2.
    """
    t1_ratio, t2_ratio = (1.0, 1.0) if tesla > 2 else (0.75, 1.15)
    signal = {
        name: density * (1 - np.exp(-repetition / (t1 * t1_ratio))) * np.exp(-echo / (t2 * t2_ratio))
        for name, (density, t1, t2) in TISSUES.items()
    }
    return {name: float(value / signal["fat"]) for name, value in signal.items()}


Content = Literal["gas", "stool", "collapsed", "gel", "balloon"]
HABITS: tuple[Content, ...] = ("gas", "stool", "collapsed", "gel")
# Radius of the rectum in millimetres, by its content.
RECTUM: dict[Content, tuple[float, float]] = {
    "gas": (13, 22),
    "stool": (11, 16),
    "collapsed": (8, 11),
    "gel": (10, 15),
    "balloon": (16, 20),
}


@dataclass(frozen=True)
class Pelvis:
    """One subject's shape. All lengths in millimetres."""

    gland: Triple  # half width, half depth, half height
    taper: float  # how much wider the gland is at the base than at the apex
    central: float  # size of the central gland as a fraction of the whole; it grows with the volume
    heterogeneity: float  # of the central gland: nodules and stroma
    rectum: float  # radius of the rectum, or of the coil's balloon
    content: Content
    rectum_x: float  # distance of the rectum from the midline
    bladder: Triple  # radii; they depend on the filling
    build: float  # size of the bony pelvis, relative to a typical one
    tilt: float  # height of the bones relative to the gland
    skin: float  # distance from the gland's centre to the skin in front

    @property
    def rectum_y(self) -> float:
        """Return the rectum's distance behind the gland's centre; a balloon presses into the gland."""
        gap = -3.0 if self.content == "balloon" else 3.5
        return self.gland[1] + self.rectum + gap

    @classmethod
    def random(cls, rng: np.random.Generator, volume: float, endorectal: bool) -> Pelvis:
        """Return a random subject with a gland of about `volume` ml, compressed if there is an endorectal coil."""
        millilitres = float(np.clip(volume * np.exp(0.36 * rng.standard_normal()), 16, 140))
        width, depth, height = (1.0, 0.68, 0.90) if endorectal else (1.0, 0.80, 0.86)
        width, depth, height = (v * float(rng.normal(1, 0.05)) for v in (width, depth, height))
        unit = (millilitres * 1000 / (4.4 * width * depth * height)) ** (1 / 3)
        content: Content = "balloon" if endorectal else rng.choice(np.array(HABITS), p=(0.45, 0.2, 0.25, 0.1)).item()
        fill = rng.uniform(0.75, 1.25)
        return cls(
            gland=(width * unit, depth * unit, height * unit),
            taper=rng.uniform(0.05, 0.2),
            central=float(np.clip(0.75 + 0.002 * (millilitres - 45) + rng.normal(0, 0.05), 0.58, 0.88)),
            heterogeneity=rng.uniform(0.5, 1.2),
            rectum=rng.uniform(*RECTUM[content]),
            content=content,
            rectum_x=rng.normal(0, 1.5 if endorectal else 3),
            bladder=(36 * fill, 27 * fill, 25 * fill),
            build=float(np.clip(rng.normal(1, 0.04), 0.92, 1.08)),
            tilt=rng.normal(0, 4),
            skin=rng.uniform(80, 98),
        )


# The left half of the body wall of a typical pelvis; the right half is its mirror image.
MUSCLES = (
    Part((68, 68, 10), (64, 17, 95), -13),  # gluteus maximus
    Part((102, 32, 0), (28, 22, 80), 20),  # rotators of the hip
    Part((74, 4, -42), (34, 15, 36), 40),  # quadratus femoris
    Part((82, -42, 15), (25, 19, 130), 18),  # iliopsoas
    Part((54, -27, -32), (50, 13, 36), 33),  # obturator externus
    Part((60, -53, -18), (54, 13, 44), 20),  # pectineus and adductors
    Part((18, -70, 48), (21, 5, 52), 8),  # rectus abdominis
)
PELVIC_BONES = (
    Part((57, 4, 22), (6, 33, 34), -9),  # floor of the acetabulum
    Part((62, 25, 20), (12, 17, 40), -25),  # posterior column
    Part((57, -24, 26), (10, 15, 24), 40),  # anterior column
    Part((62, 22, -18), (12, 17, 28), -12),  # ischium, down to its tuberosity
    Part((38, -8, -38), (34, 6, 15), 48),  # lower branch of the pubis
    Part((38, -39, 6), (30, 9, 13), 22),  # upper branch
    Part((13, -43, -6), (14, 11, 20), 35),  # body
)
FEMUR = (
    Part((89, -3, 23), (24, 24, 24)),  # head
    Part((112, 4, 8), (28, 15, 18), 8),  # neck
)
ARTERY, VEIN = Part((66, -64, 10), (6, 6, 200)), Part((55, -62, 10), (6, 5, 200))  # the femoral ones
OBTURATOR_INTERNUS = Part((44, 3, 4), (9, 38, 42), -9)
PENIS = Part((7, -64, -50), (7, 10, 24))  # its root
SYMPHYSIS, COCCYX = Part((0, -43, -6), (2.4, 15, 20)), Part((0, 74, 34), (11, 7, 34))
CLEFT = Part((0, 92, -25), (1.2, 22, 45))  # between the buttocks


@dataclass(frozen=True)
class Scene:
    """A painted pelvis: its signal, the outlines of gland and central gland, and the distance to the coil."""

    signal: Array
    gland: Array  # distance to the gland's surface, negative inside
    central: Array  # distance to the central gland's surface
    coil: Array  # distance to the middle of the rectum, the place of an endorectal coil


def depict(pelvis: Pelvis, grid: Grid, signal: dict[str, float], edge: float, rng: np.random.Generator) -> Scene:
    """Return the pelvis painted over the grid with each tissue's signal."""
    smooth = grid.warped(*(2.8 * smooth_noise(rng, grid, 38.0) for _ in "xy"))
    rough = smooth.warped(*(0.9 * smooth_noise(rng, grid, 9.0) for _ in "xy"))  # masks are smooth, organs are not
    fine, coarse = smooth_noise(rng, grid, (4, 1.6, 1.6)), smooth_noise(rng, grid, (14, 6, 6))
    # A level set of a smooth field is a thin winding sheet: septa in fat, streaks of fat in muscle.
    septa = np.clip(1 - np.abs(smooth_noise(rng, grid, (14, 6, 9))) * 6, 0, 1)
    streaks = np.clip(1 - np.abs(smooth_noise(rng, grid, (30, 4, 16)) - 0.8) * 4, 0, 1)
    fat = signal["fat"] * (1 - 0.3 * septa)
    muscle = signal["muscle"] + 0.25 * signal["fat"] * streaks

    rectum_x, rectum_y, rectum_r = _rectum_course(pelvis, grid.axes[0])
    rectum = tube(grid if pelvis.content == "balloon" else smooth, rectum_x, rectum_y, rectum_r)  # a balloon is round
    gland, central = _gland_shape(pelvis, smooth, rectum)

    canvas = Canvas(rough, edge)
    _body_wall(canvas, pelvis, signal, fat, muscle)
    _cavity(canvas, pelvis, signal, fat, gland, smooth_noise(rng, grid, (5, 2.2, 2.2)))
    _bladder_and_vesicles(canvas, pelvis, signal, smooth_noise(rng, grid, (5, 2.6, 2.6)))
    _rectum(canvas, pelvis, signal, rectum, coarse)
    _gland(canvas, pelvis, signal, gland, central, rng)
    canvas.image *= 1 + np.float32(0.06) * (fine + coarse)
    return Scene(canvas.image, gland, central, np.asarray(rectum + rectum_r[:, None, None]))


def _body_wall(canvas: Canvas, pelvis: Pelvis, signal: dict[str, float], fat: Array, muscle: Array) -> None:
    """Paint skin, muscle and bone of a man who lies on his back."""
    s, up = pelvis.build, pelvis.tilt

    def placed(*parts: Part) -> list[Part]:
        return [
            Part((x * s, y * s, z + up), (a * s, b * s, c), turn) for (x, y, z), (a, b, c), turn in mirrored(*parts)
        ]

    x, y = canvas.grid.x, canvas.grid.y
    skin = np.maximum(0.0016 * x * x - pelvis.skin - y, y + 0.0006 * x * x - 90)
    canvas.paint(skin, muscle)
    canvas.paint(skin + np.float32(1.5), fat)
    for part in MUSCLES:
        canvas.fill(placed(part), (-1.2, fat), (0, muscle))  # a layer of fat separates muscles
    canvas.fill(placed(ARTERY), (0, signal["wall"]), (1.2, signal["cortex"]))
    canvas.fill(placed(VEIN), (0, signal["wall"]), (1.2, signal["lesion"]))
    bone = (0, signal["cortex"]), (1.7, signal["marrow"])
    canvas.fill(placed(*PELVIC_BONES), (-2.2, muscle), *bone)
    canvas.fill(placed(*FEMUR), (-2.2, muscle), *bone)
    canvas.fill(placed(SYMPHYSIS), (0, signal["fibrous"]))
    canvas.fill(placed(COCCYX), *bone)
    canvas.fill(placed(OBTURATOR_INTERNUS), (-1.0, fat), (0, muscle))
    canvas.fill(placed(PENIS), (0, signal["fibrous"]), (1.5, signal["erectile"]))
    canvas.fill(placed(CLEFT), (0, signal["wall"]))


def _cavity(canvas: Canvas, pelvis: Pelvis, signal: dict[str, float], fat: Array, gland: Array, mottle: Array) -> None:
    """Paint the levator ani, a funnel that closes towards the feet, and the fat and veins inside it."""
    z = canvas.grid.axes[0]
    rise = 1 / (1 + np.exp(-(z - pelvis.tilt - 4) / 7))
    narrow = pelvis.gland[0] * np.sqrt(np.clip(1 - (z / (1.15 * pelvis.gland[2])) ** 2, 0.12, 1)) + 5
    half_width = np.maximum(narrow, 18) * (1 - rise) + max(41 * pelvis.build, pelvis.gland[0] + 6) * rise
    back = pelvis.rectum_y + pelvis.rectum + 5 + 14 * rise
    front = -pelvis.gland[1] - 8 - 8 * rise
    half_depth, middle = (back - front) / 2, (back + front) / 2
    column = [np.asarray(values, np.float32)[:, None, None] for values in (half_width, half_depth, middle)]
    u, v = canvas.grid.x / column[0], (canvas.grid.y - column[2]) / column[1]
    level = np.sqrt(u * u + v * v) + np.float32(1e-4)
    ring = (level - 1) * level / (np.sqrt((u / column[0]) ** 2 + (v / column[1]) ** 2) + np.float32(1e-6))
    thick = np.asarray(3.8 - 2.4 * rise, np.float32)[:, None, None]  # thinner higher up, at the side wall,
    thick = thick * np.clip(0.75 + 0.9 * v + 0.1 * mottle, -0.3, 1.3)  # and open in front, at the gland
    canvas.paint(ring - thick, signal["muscle"])
    canvas.paint(ring, fat * np.float32(0.94))
    vessels = np.clip(0.45 + 0.4 * mottle, 0, 1)  # the plexus around the gland, densest in front
    veins = signal["fibrous"] + vessels * (signal["vein"] - signal["fibrous"])
    canvas.paint(np.maximum(ring, gland - 3.5 - np.clip(-canvas.grid.y * 0.25, 0, 7)), veins, opacity=0.7)


def _bladder_and_vesicles(canvas: Canvas, pelvis: Pelvis, signal: dict[str, float], folds: Array) -> None:
    """Paint the organs at the base of the gland: seminal vesicles and vasa behind, the bladder in front."""
    width, depth, height = pelvis.bladder
    base = pelvis.gland[2]
    walls = np.clip(np.abs(folds) * 2.2, 0, 1)  # the vesicles are coiled tubes: bright, with thin dark walls
    coils = signal["fibrous"] + walls * (signal["vesicle"] - signal["fibrous"])
    behind = pelvis.gland[1] * 0.72
    canvas.fill(mirrored(Part((17, behind - 2, base + 5), (19, 6.5, 12), -20)), (0, coils))
    vas = Part((4, behind - 3, base + 6), (3.5, 3.5, 14))
    canvas.fill(mirrored(vas), (0, signal["fibrous"]), (1.4, signal["vesicle"]))
    bladder = Part((0, -0.25 * depth - 5, base + 0.62 * height), (width, depth, height))
    canvas.fill([bladder], (0, signal["wall"]), (3.5, signal["fluid"]))


def _rectum_course(pelvis: Pelvis, z: Array) -> tuple[Array, Array, Array]:
    """Return centre (x, y) and radius of the rectum in each slice: narrow at the anal canal, along the sacrum above."""
    height = pelvis.gland[2]
    open_ = 1 / (1 + np.exp(-(z + height * (1.15 if pelvis.content == "balloon" else 0.85)) / 4))
    radius = 6 + (pelvis.rectum - 6) * open_
    x = pelvis.rectum_x * open_
    y = pelvis.rectum_y - 0.6 * (pelvis.rectum - radius) + 0.006 * np.clip(z - height * 0.3, 0, None) ** 2
    return np.asarray(x, np.float32), np.asarray(y, np.float32), np.asarray(radius, np.float32)


def _rectum(canvas: Canvas, pelvis: Pelvis, signal: dict[str, float], rectum: Array, uneven: Array) -> None:
    """Paint the rectum: the coil's balloon on its shaft, or the wall, its lining and its content."""
    z = canvas.grid.axes[0]
    sphincter = 5 / (1 + np.exp((z + pelvis.gland[2] + 2) / 3))  # the sphincter thickens the wall of the anal canal
    wall = np.asarray(2.4 + sphincter, np.float32)[:, None, None]
    if pelvis.content == "balloon":
        canvas.paint(rectum - wall, signal["wall"])
        canvas.paint(rectum - np.float32(0.8) - 0.4 * uneven, signal["vein"])
        canvas.paint(rectum, signal["cortex"])
        canvas.paint(rectum + np.float32(1.2), signal["balloon"])
        shaft = rectum - rectum.min(axis=(1, 2), keepdims=True)
        canvas.paint(shaft - np.float32(4.5), signal["cortex"])
        canvas.paint(shaft - np.float32(1.5), signal["wall"])
        return
    lumen = rectum + np.clip(uneven, -1, 1.5) * np.float32(0.1 * pelvis.rectum)
    canvas.paint(lumen - wall, signal["wall"] * 0.85)
    canvas.paint(lumen - np.float32(0.8), signal["mucosa"] * 0.8)
    if pelvis.content == "collapsed":  # the folded lining fills it and looks like a star
        canvas.paint(lumen, signal["wall"])
        canvas.paint(lumen + np.float32(0.5 * pelvis.rectum) + 2.5 * np.clip(uneven, -1, 1), signal["mucosa"])
    else:
        canvas.paint(lumen, {"gas": signal["cortex"], "gel": signal["fluid"]}.get(pelvis.content, signal["stool"]))


def _gland_shape(pelvis: Pelvis, grid: Grid, rectum: Array) -> tuple[Array, Array]:
    """Return the distances to the gland, outside the rectum, and to the central gland, in its front upper part."""
    width, depth, height = pelvis.gland
    spread = 1 / (1 + np.float32(pelvis.taper) * grid.z / np.float32(height))
    x, y = grid.x * spread, (grid.y + np.float32(0.08) * grid.z) * spread
    y = y + np.float32(0.10 * depth) * np.cos(
        x * np.float32(np.pi / width)
    )  # a shallow groove in the midline of the back
    ball = implicit(x, y, grid.z, pelvis.gland, power=2.8)
    gland = meet(ball, np.float32(3.4) - rectum, rounding=4.0)
    f = pelvis.central
    radii = (width * f, depth * f * 0.98, height * (f + 0.08))
    zone = implicit(x, y + np.float32(0.22 * depth), grid.z - np.float32(0.16 * height), radii)
    return gland, meet(zone, gland + np.float32(1.2), rounding=2.0)


def _gland(
    canvas: Canvas,
    pelvis: Pelvis,
    signal: dict[str, float],
    gland: Array,
    central: Array,
    rng: np.random.Generator,
) -> None:
    """Paint capsule, peripheral zone with dark foci, central gland with nodules, anterior muscle and the urethra."""
    grid, (width, depth, height) = canvas.grid, pelvis.gland
    mottle = smooth_noise(rng, grid, (6, 3, 3))
    inner = gland + np.float32(0.9)
    canvas.paint(gland, signal["fibrous"])
    canvas.paint(inner, signal["peripheral"] * (1 + 0.10 * mottle))
    for _ in range(int(rng.integers(0, 3))):
        angle, size = rng.uniform(0.1, 0.9) * np.pi, rng.uniform(3, 6)
        place = 0.8 * width * np.cos(angle), 0.75 * depth * np.sin(angle), rng.uniform(-0.5, 0.3) * height
        canvas.fill([Part(place, (size * 1.4, size * 0.8, size))], (0, signal["lesion"]), within=inner)
    canvas.paint(central - np.float32(0.5), signal["fibrous"])
    stroma = np.clip(mottle * np.float32(0.28 * pelvis.heterogeneity), -0.45, 0.6)
    canvas.paint(central + np.float32(0.6), signal["central"] * (1 + stroma))
    for _ in range(int(rng.poisson(1 + 6 * pelvis.heterogeneity * pelvis.central))):
        size, (x, y, z) = rng.uniform(0.12, 0.3) * width, rng.uniform(-0.6, 0.6, 3) * pelvis.central
        place = float(x * width), float((y - 0.2) * depth), float((z + 0.15) * height)
        kind = signal["nodule"] if rng.random() < 0.5 else signal["lesion"]
        nodule = Part(place, (size, size * 0.85, size), rng.uniform(-30, 30))
        canvas.fill([nodule], (0, signal["fibrous"]), (0.8, kind * (1 + np.float32(0.2) * mottle)), within=central)
    stroma_in_front = Part((0, -depth, 0), (0.4 * width, 0.42 * depth, height))
    canvas.fill([stroma_in_front], (0, signal["muscle"] * 1.3), within=inner)
    z_axis = grid.axes[0]
    course = np.interp(z_axis, (-height, 0, height), (0.1 * depth, 0.12 * depth, -0.5 * depth)).astype(np.float32)
    radius = np.where(z_axis < -0.5 * height, 4.2, 2.8).astype(np.float32)
    urethra = np.maximum(tube(grid, np.zeros_like(course), course, radius), grid.z - np.float32(0.75 * height))
    canvas.paint(urethra, signal["fibrous"], opacity=0.7)
    canvas.paint(urethra + np.float32(1.8), signal["mucosa"])
