"""Random scenes: things on the table, lights and cameras, drawn from ranges by a seed.

Positions in m, yaw in rad, in the frame of `kinematics`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeVar, cast

import numpy as np

from embodied_kv.demo.sim.spots import spots

T = TypeVar('T', bound=tuple[float, ...])
COLOURS: dict[str, tuple[float, float, float]] = {
    'red': (0.85, 0.10, 0.10),
    'green': (0.10, 0.62, 0.16),
    'blue': (0.10, 0.22, 0.85),
    'yellow': (0.95, 0.82, 0.08),
    'purple': (0.52, 0.12, 0.66),
    'cyan': (0.10, 0.75, 0.80),
    'orange': (0.96, 0.48, 0.05),
}
SIZES: dict[str, tuple[float, float, float]] = {  # full extents, m
    'cube': (0.045, 0.045, 0.045),
    'cylinder': (0.042, 0.042, 0.064),
    'ball': (0.048, 0.048, 0.048),
    'plate': (0.130, 0.130, 0.010),
    'bin': (0.130, 0.130, 0.035),
}
COVER = (0.080, 0.080, 0.076)  # full extents of a cover, m: it hides any movable thing
COVER_RGB = (0.40, 0.26, 0.16)  # brown, the colour of no thing
MOVABLE = ('cube', 'cylinder', 'ball')
RECEPTACLES = ('plate', 'bin')
FLOORS = {'plate': 0.010, 'bin': 0.006}  # m, heights of their floors
WALL = 0.008  # m, of a bin
CAMERAS = ('front', 'wrist')
# The centres of the random ranges.
FRONT_EYE, FRONT_TARGET = (0.96, 0.0, 0.80), (0.37, 0.0, 0.06)  # m
FRONT_FOVY = 38.0  # degrees
START = (0.26, 0.0, 0.27)  # m
AWAY_JITTER = np.array([0.006, 0.006, 0.2])  # m, m, rad: half ranges in receptacles
AWAY_TRIES = 50


@dataclass(frozen=True)
class SceneConfig:
    """Ranges of scenes; (low, high) pairs are uniform and inclusive.

    put_away: number of objects in receptacles, at most two in each. Objects differ in (colour,
    shape), with `distinct_colours` in colour alone. A receptacle (bin or plate) is fixed to the
    table and has another colour than all objects. covers: number of equal covers, out of sight at
    the start. Jitters are half ranges; 0 disables one. Raises ValueError for impossible ranges.
    """

    objects: tuple[int, int] = (3, 5)
    receptacles: tuple[int, int] = (0, 1)
    put_away: tuple[int, int] = (0, 0)
    shapes: tuple[str, ...] = ('cube', 'cylinder')
    receptacle_shapes: tuple[str, ...] = RECEPTACLES
    colours: tuple[str, ...] = ('red', 'green', 'blue', 'yellow', 'purple', 'cyan', 'orange')
    distinct_colours: bool = True
    x: tuple[float, float] = (0.27, 0.53)
    y: tuple[float, float] = (-0.22, 0.22)
    yaw: tuple[float, float] = (-np.pi, np.pi)
    clearance: float = 0.045  # m, free distance between the circles of two objects
    colour_jitter: float = 0.04
    light_jitter: float = 0.25  # of the light's strength, and of its direction
    camera_jitter: float = 0.015  # m, of the front camera's position and of its target
    fovy_jitter: float = 1.0  # degrees
    arm_jitter: float = 0.03  # m, of the gripper's start
    image_size: int = 64
    covers: int = 0

    def __post_init__(self) -> None:
        for name, known in (
            ('shapes', MOVABLE),
            ('receptacle_shapes', RECEPTACLES),
            ('colours', COLOURS),
        ):
            if unknown := set(getattr(self, name)) - set(known):
                raise ValueError(f'{name} must be of {", ".join(known)} (got {sorted(unknown)})')
        for name in ('objects', 'receptacles', 'put_away', 'x', 'y', 'yaw'):
            low, high = getattr(self, name)
            if not low <= high:
                raise ValueError(f'{name} must be (low, high) (got {low}, {high})')
        kinds = len(self.colours) * (1 if self.distinct_colours else len(self.shapes))
        if self.objects[0] < 0 or self.objects[1] > kinds:
            raise ValueError(f'objects must be from 0 to {kinds} kinds (got {self.objects})')
        if self.receptacles[0] < 0 or self.objects[1] + self.receptacles[1] > kinds:
            raise ValueError(
                f'receptacles must be from 0 to {kinds - self.objects[1]}, the kinds without '
                f'objects (got {self.receptacles})'
            )
        if self.put_away[0] < 0:
            raise ValueError(f'put_away must be >= 0 (got {self.put_away})')
        if self.covers < 0:
            raise ValueError(f'covers must be >= 0 (got {self.covers})')
        if not 8 <= self.image_size <= 4096:
            raise ValueError(f'image_size must be from 8 to 4096 (got {self.image_size})')


@dataclass(frozen=True)
class Thing:
    """An object or receptacle at its start. rgb: with jitter. size: full extents.

    floor: m, the height of its support.
    """

    name: str
    shape: str
    colour: str
    rgb: tuple[float, float, float]
    position: tuple[float, float]
    yaw: float
    size: tuple[float, float, float]
    floor: float = 0.0

    @property
    def radius(self) -> float:
        """Radius of the circle around the footprint, m."""
        return circle(self.shape, self.size)


@dataclass(frozen=True)
class Scene:
    """One scene. eye, target: position of the front camera, and the point in its centre.

    covers: their number.
    """

    things: tuple[Thing, ...]
    table: tuple[float, float, float]
    light_from: tuple[float, float, float]
    light: float
    ambient: float
    eye: tuple[float, float, float]
    target: tuple[float, float, float]
    fovy: dict[str, float]
    gripper: tuple[float, float, float]
    covers: int = 0


def circle(shape: str, size: Sequence[float] | np.ndarray) -> float:
    """Return the radius of the circle around a footprint, m."""
    x, y = size[:2]
    return float(x / 2 if shape in ('cylinder', 'ball', 'plate') else np.hypot(x, y) / 2)


def draw_scene(config: SceneConfig, rng: np.random.Generator) -> Scene:
    """Return the next scene of `rng`. Raises ValueError if the objects do not fit the table."""

    def near(centre: T, half: float) -> T:
        jitter = rng.uniform(-1, 1, len(centre)) * half
        return cast(T, tuple((np.asarray(centre) + jitter).tolist()))

    kinds = [*_draw_kinds(config, rng)]
    away = _draw_away(config, kinds, rng) if config.put_away[1] else 0
    things = _place(config, kinds[: len(kinds) - away], rng)
    _put_away(config, things, kinds[len(kinds) - away :], rng)
    jitter, tint = config.light_jitter, config.colour_jitter
    return Scene(
        things=tuple(things),
        table=near((0.62, 0.60, 0.57), tint),
        light_from=near((0.3, 0.5, 1.5), 1.5 * jitter),
        light=0.55 * near((1.0,), jitter)[0],
        ambient=0.45 * near((1.0,), jitter)[0],
        eye=near(FRONT_EYE, config.camera_jitter),
        target=near(FRONT_TARGET, config.camera_jitter),
        fovy={
            'front': near((FRONT_FOVY,), config.fovy_jitter)[0],
            'wrist': near((75.0,), config.fovy_jitter)[0],
        },
        gripper=near(START, config.arm_jitter),
        covers=config.covers,
    )


def _draw_kinds(config: SceneConfig, rng: np.random.Generator):
    """Yield (shape, colour) of every thing, receptacles first, because they are the largest."""
    free = [str(c) for c in rng.permutation(config.colours)]
    for _ in range(rng.integers(*config.receptacles, endpoint=True)):
        yield str(rng.choice(config.receptacle_shapes)), free.pop()
    count = int(rng.integers(*config.objects, endpoint=True))
    if config.distinct_colours:
        for colour in free[:count]:
            yield str(rng.choice(config.shapes)), colour
    else:
        kinds = list(product(config.shapes, free))
        for i in rng.permutation(len(kinds))[:count]:
            yield kinds[i]


def _place(
    config: SceneConfig, kinds: list, rng: np.random.Generator, tries: int = 200
) -> list[Thing]:
    """Return things that keep the clearance, by rejection; a full layout is restarted."""
    low, high = np.array([config.x, config.y]).T
    for _ in range(tries):
        things: list[Thing] = []
        for shape, colour in kinds:
            rgb = _draw_rgb(config, colour, rng)
            for _ in range(tries):
                position = rng.uniform(low, high)
                thing = _thing(shape, colour, rgb, position, rng.uniform(*config.yaw))
                if all(_gap(thing, other) >= config.clearance for other in things):
                    things.append(thing)
                    break
            else:
                break
        else:
            return things
    raise ValueError(
        f'{len(kinds)} things do not fit x {config.x}, y {config.y}; '
        f'widen these or lower clearance {config.clearance}'
    )


def _thing(
    shape: str, colour: str, rgb: tuple, position: np.ndarray, yaw: float, floor: float = 0.0
) -> Thing:
    at = tuple(position.tolist())
    return Thing(f'{colour} {shape}', shape, colour, rgb, at, float(yaw), SIZES[shape], floor)


def _draw_rgb(config: SceneConfig, colour: str, rng: np.random.Generator) -> tuple:
    jitter = rng.uniform(-1, 1, 3) * config.colour_jitter
    return tuple(np.clip(np.array(COLOURS[colour]) + jitter, 0, 1).tolist())


def _draw_away(config: SceneConfig, kinds: list, rng: np.random.Generator) -> int:
    """Return how many things, the last ones, are in receptacles."""
    places = sum(shape in RECEPTACLES for shape, _ in kinds)
    wanted = int(rng.integers(*config.put_away, endpoint=True))
    return min(wanted, 2 * places, len(kinds) - places)


def _put_away(
    config: SceneConfig, things: list[Thing], kinds: list, rng: np.random.Generator
) -> None:
    """Add things, each on a free spot of a receptacle."""
    free = [(t, i) for t in things if t.shape in RECEPTACLES for i in (0, 1)]
    for shape, colour in kinds:
        place, i = free.pop(int(rng.integers(len(free))))
        rgb = _draw_rgb(config, colour, rng)
        spot = spots(np.array(place.position))[i]
        out = float(np.arctan2(spot[1], spot[0]))
        near = [t for t in things if t.floor and _distance(t, place) < place.radius]
        for jitter in (*(AWAY_JITTER * rng.uniform(-1, 1, (AWAY_TRIES, 3))), np.zeros(3)):
            position, yaw = spot + jitter[:2], out + jitter[2]
            thing = _thing(shape, colour, rgb, position, yaw, FLOORS[place.shape])
            if _fits(thing, place) and all(_stands_free(thing, t, out) for t in near):
                break
        things.append(thing)


def _fits(thing: Thing, place: Thing) -> bool:
    """Return whether the thing is clear of the walls of a bin; a plate has none."""
    x, y, _ = np.array(thing.size) / 2
    corners = np.array([(x, y), (x, -y), (-x, y), (-x, -y)])
    if thing.shape != 'cube':
        corners = x * np.array([(1, 0), (0, 1), (-1, 0), (0, -1)])
    turn = thing.yaw - place.yaw if thing.shape == 'cube' else 0.0
    way = _turned(np.subtract(thing.position, place.position), -place.yaw)
    inner = place.size[0] / 2 - (WALL if place.shape == 'bin' else 0)
    return bool((np.abs(way + _turned(corners, turn)) < inner - 0.0005).all())


def _stands_free(a: Thing, b: Thing, out: float) -> bool:
    """Return whether two things have a gap in the direction outward from the robot."""
    apart = np.abs(_turned(np.subtract(a.position, b.position), -out))[0]
    return bool(apart > sum(_depth(thing, out) for thing in (a, b)))


def _depth(thing: Thing, out: float) -> float:
    """Return half of the extent outward, m."""
    if thing.shape != 'cube':
        return thing.radius
    return thing.size[0] / 2 * (abs(np.cos(thing.yaw - out)) + abs(np.sin(thing.yaw - out)))


def _turned(points: np.ndarray, angle: float) -> np.ndarray:
    cos, sin = np.cos(angle), np.sin(angle)
    return points @ np.array([[cos, sin], [-sin, cos]])


def _distance(a: Thing, b: Thing) -> float:
    return float(np.hypot(*np.subtract(a.position, b.position)))


def _gap(a: Thing, b: Thing) -> float:
    return _distance(a, b) - a.radius - b.radius
