"""The tasks of the simulated robot: their families, their instructions, and their success.

Left and right are those of the robot: left is +y. Six families depend on the present state only.
Three others, MEMORY_FAMILIES, refer to the past: the present state does not determine their goal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embodied_kv.demo.sim.kinematics import reaches
from embodied_kv.demo.sim.scene import FLOORS, MOVABLE, RECEPTACLES, SceneConfig, circle
from embodied_kv.demo.sim.spots import INSIDE, NEXT, is_free, spot_beside, spot_in

if TYPE_CHECKING:  # imports mujoco
    from embodied_kv.demo.sim.tabletop import ObjectTruth, Truth

BASIC = ('reach', 'pick', 'put', 'push')
FAMILIES = (*BASIC, 'take', 'next')
MEMORY_FAMILIES = ('return', 'hidden', 'sequence')
EVERY_FAMILY = (*FAMILIES, *MEMORY_FAMILIES)
NOWHERE = (float('nan'),) * 2  # the spot of a task without one
COVERS = 3  # most covers on a table
REACHES = ('reach', 'hidden', 'sequence')  # families that end above something
SIDES = {'left': 1.0, 'right': -1.0}  # sign of y
SECONDS = {  # time limits
    'reach': 6.0,
    'pick': 10.0,
    'put': 15.0,
    'push': 15.0,
    'take': 15.0,
    'next': 15.0,
    'return': 15.0,
    'hidden': 6.0,
    'sequence': 8.0,
}
PHRASES = {
    'reach': ('reach the {x}', 'move to the {x}', 'go above the {x}', 'hover over the {x}'),
    'pick': ('pick up the {x}', 'lift the {x}', 'grasp the {x}', 'take the {x}'),
    'put': (
        'put the {x} {on} the {y}',
        'place the {x} {on} the {y}',
        'move the {x} {on} the {y}',
        'set the {x} down {on} the {y}',
        'put the {x} back {on} the {y}',
    ),
    'push': (
        'push the {x} to the {side}',
        'slide the {x} to the {side}',
        'push the {x} over to the {side} side',
        'shift the {x} to the {side}',
    ),
    'take': (
        'take the {x} {off} the {y}',
        'remove the {x} from the {y}',
        'get the {x} {off} the {y}',
        'move the {x} from the {y} to the table',
    ),
    'next': (
        'move the {x} next to the {y}',
        'put the {x} beside the {y}',
        'place the {x} next to the {y}',
        'set the {x} down beside the {y}',
    ),
}
MEMORY_PHRASES = {
    'return': (
        'put the {x} back where it was',
        'put the {x} where it was before',
        'move the {x} back to where it was',
        'set the {x} down where it was before',
    ),
    'hidden': (
        'reach the cover over the {x}',
        'move to the cover over the {x}',
        'go above the cover over the {x}',
        'hover over the cover over the {x}',
    ),
    'sequence': (
        'reach the one you reached before',
        'move to the one you reached before',
        'go above the one you reached before',
        'hover over the one you reached before',
    ),
}
EVERY_PHRASE = PHRASES | MEMORY_PHRASES
HOVER = 0.13  # m above the table, of the gripper point over a thing
PUSHING = 0.024  # m, height of the gripper point that pushes
SIDE_LINE = 0.24  # m; a thing beyond this |y| is at the side of the table
STEADY = 5  # control periods that a reach or a pick must last
ROOM = 0.10  # m, free way of a thing that is pushed
BEHIND = 0.030  # m between a thing's circle and the gripper point before a push
FINGERS = np.array([0.024, 0.010])  # m, x and y: half extents of the pushing fingers
LOWEST = 0.03  # m; the lower side of a thing in a receptacle or on the table is below it
RESTING = 0.004  # m; the lower side of a thing flat on the table is below it
MOVED = 0.01  # m, least displacement of a thing that was put beside another
RETURNED = 0.04  # m, largest distance of a returned thing from its earlier position
AWAY = 0.08  # m, least distance of a thing from its earlier position before it is returned


@dataclass(frozen=True)
class Task:
    """A task. family: one of FAMILIES or MEMORY_FAMILIES.

    target, place: names of things. side: of a push. spot: x, y in m, what the instruction refers
    to: the earlier position of the target (`return`), or the cover over the target (`hidden`).
    """

    family: str
    target: str
    place: str = ''
    side: str = ''
    spot: tuple[float, float] | None = None

    def phrase(self, number: int) -> str:
        """Return the instruction; `number` selects the phrasing."""
        phrases = EVERY_PHRASE[self.family]
        on = 'into' if self.place.endswith('bin') else ('on', 'onto')[number // len(phrases) % 2]
        words = phrases[number % len(phrases)]
        off = off_the(self.place)
        return words.format(x=self.target, y=self.place, on=on, off=off, side=self.side)


def off_the(place: str) -> str:
    """Return the preposition for a thing that is taken from a place."""
    return 'out of' if place.endswith('bin') else 'off'


def task_scene(family: str | None = None, crowded: bool = False, **changes) -> SceneConfig:
    """Return ranges of scenes with 2 to 5 objects, in which every task of the family is possible.

    crowded: two receptacles and 2 to 4 objects, some of them in receptacles, for every family.
    """
    if crowded:
        ranges = {'objects': (2, 4), 'receptacles': (2, 2), 'put_away': (1, 2)}
    elif family == 'take':
        ranges = {'objects': (2, 4), 'receptacles': (1, 2), 'put_away': (1, 2)}
    else:
        ranges = {'objects': (2, 5), 'receptacles': (1, 1) if family == 'put' else (0, 1)}
    if family == 'hidden':  # one object remains visible
        ranges['objects'] = 3, ranges['objects'][1]
        changes.setdefault('covers', COVERS)
    return SceneConfig(**ranges | changes)


def draw_task(
    things: Sequence[ObjectTruth], rng: np.random.Generator, family: str | None = None
) -> Task | None:
    """Return a random task that is possible in this state, or None."""
    options = [t for f in ((family,) if family else FAMILIES) if (t := _options(f, things))]
    if not options:
        return None
    tasks = options[rng.integers(len(options))]
    return tasks[rng.integers(len(tasks))]


def _options(family: str, things: Sequence[ObjectTruth]) -> list[Task]:
    places = [t for t in things if t.shape in RECEPTACLES]
    movable = [t for t in things if t.shape in MOVABLE]
    inside = {t.name: p for t in movable for p in places if lies_in(t, p, things)}
    free = [t for t in things if can_be_taken(t) and _is_upright(t, inside.get(t.name))]
    away = [t for t in free if t.name in inside]
    match family:
        case 'put':
            wanted = [
                Task('put', t.name, p.name)
                for t in free
                for p in places
                if inside.get(t.name) != p
            ]
        case 'take':
            wanted = [Task('take', t.name, inside[t.name].name) for t in away]
        case 'next':
            wanted = [
                Task('next', t.name, o.name)
                for t in free
                for o in things
                if o is not t and o.name not in inside and o.position[2] > 0
                if t in away or gap(t, o) > NEXT + MOVED
            ]
        case 'push':
            return [
                Task('push', t.name, side=side)
                for t in free
                if t not in away
                for side, sign in SIDES.items()
                if sign * t.position[1] < SIDE_LINE - ROOM
                and not any(_in_the_way(t, p, sign) for p in places)
                and not any(_is_behind(o, t, sign) for o in things if o is not t)
            ]
        case _:
            return [Task(family, t.name) for t in free]
    return [t for t, room in zip(wanted, have_room(wanted, things), strict=True) if room]


def have_room(tasks: Sequence[Task], things: Sequence[ObjectTruth]) -> np.ndarray:
    """Return whether there is a free spot for the target of each task, bool [tasks]."""
    if not tasks:
        return np.ones(0, bool)
    names = [thing.name for thing in things]
    at = np.array([thing.position[:2] for thing in things])
    at, radius, movable = (
        np.repeat(np.array(values)[None], len(tasks), 0)
        for values in (
            at,
            [circle(thing.shape, thing.size) for thing in things],
            [thing.shape in MOVABLE for thing in things],
        )
    )
    target = np.array([names.index(task.target) for task in tasks])
    place = np.array([names.index(task.place) if task.place else 0 for task in tasks])
    family = np.array([task.family for task in tasks])
    _, inside = spot_in(at, movable, target, place)
    _, beside = spot_beside(at, radius, target, place)
    again = returns = family == 'return'
    if returns.any():
        spot = np.array([task.spot or NOWHERE for task in tasks])
        again = is_free(at, radius, movable, target, spot)
    cases = family == 'put', np.isin(family, ('take', 'next')), returns
    return np.select(cases, (inside, beside, again), True)


def can_be_taken(thing: ObjectTruth) -> bool:
    """Return whether a thing is movable, upright (a fallen cylinder is lower) and in reach."""
    x, y, _ = thing.position
    reach = np.hypot(x, y) < 0.62 and abs(y) < 0.3
    return bool(thing.shape in MOVABLE and reach and _is_upright(thing, None))


def _is_upright(thing: ObjectTruth, place: ObjectTruth | None) -> bool:
    return bottom(thing) > (FLOORS[place.shape] if place else 0) - 0.004


def bottom(thing: ObjectTruth) -> float:
    """Return the height of the lower side of an upright thing, m."""
    return float(thing.position[2] - thing.size[2] / 2)


def lies_in(thing: ObjectTruth, place: ObjectTruth, things: Sequence[ObjectTruth] = ()) -> bool:
    """Return whether a thing rests on a plate or in a bin, or on one of the things that do."""
    if distances(thing.position, place.position) >= INSIDE:
        return False
    return bottom(thing) < LOWEST or any(
        _stands_on(thing, other) and lies_in(other, place)
        for other in things
        if other.shape in MOVABLE
    )


def _stands_on(thing: ObjectTruth, other: ObjectTruth) -> bool:
    """Return whether the middle of a thing is above another thing, and nothing is between them."""
    top = float(other.position[2] + other.size[2] / 2)
    above = distances(thing.position, other.position) < circle(other.shape, other.size)
    return bool(above and abs(bottom(thing) - top) < RESTING)


def lies_on_the_table(thing: ObjectTruth, things: Sequence[ObjectTruth]) -> bool:
    """Return whether a thing rests on the table and in no receptacle."""
    places = (place for place in things if place.shape in RECEPTACLES)
    return (
        bottom(thing) < RESTING
        and bool(thing.position[2] > 0)
        and not any(lies_in(thing, place) for place in places)
    )


def rests_at(spot: tuple[float, float], thing: ObjectTruth, things: Sequence[ObjectTruth]) -> bool:
    """Return whether a thing rests within RETURNED of a spot.

    It rests on the table, or in the receptacle that the spot is in.
    """
    there = [p for p in things if p.shape in RECEPTACLES and distances(p.position, spot) < INSIDE]
    inside = any(lies_in(thing, place, things) for place in there)
    rests = inside if there else lies_on_the_table(thing, things)
    return bool(rests and distances(thing.position, spot) < RETURNED)


def hovers(truth: Truth, at: np.ndarray) -> bool:
    """Return whether the gripper is above a point [2 or 3] m of the table."""
    return bool(distances(truth.grip, at) < 0.025 and 0.08 < truth.grip[2] < 0.18)


def distances(points: np.ndarray, spot: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the horizontal distances [...] m of points [..., 2 or 3] from a spot."""
    apart = points[..., :2] - np.asarray(spot)[:2]
    return np.hypot(apart[..., 0], apart[..., 1])


def is_one_place(points: np.ndarray) -> bool:
    """Return whether there are points [N, 2 or 3] (m), and all of them are less than MOVED apart.

    The last one counts as the place.
    """
    return bool(len(points)) and bool((distances(points, points[-1]) < MOVED).all())


def gap(a: ObjectTruth, b: ObjectTruth) -> float:
    """Return the free distance between the circles around two footprints, m."""
    apart = np.hypot(*(a.position - b.position)[:2])
    return float(apart) - circle(a.shape, a.size) - circle(b.shape, b.size)


def _is_behind(other: ObjectTruth, thing: ObjectTruth, sign: float) -> bool:
    """Return whether `other` blocks the fingers that go down to push the thing to a side."""
    way = (other.position - thing.position)[:2]
    way[1] += sign * (circle(thing.shape, thing.size) + BEHIND)
    beyond = np.maximum(np.abs(way) - FINGERS, 0)
    return bool(np.hypot(*beyond) < circle(other.shape, other.size))


def _in_the_way(thing: ObjectTruth, place: ObjectTruth, sign: float) -> bool:
    x, y, _ = place.position - thing.position
    return bool(abs(x) < 0.12 and sign * y > -0.12)


def hindrance(task: Task, truth: Truth, sees: Callable[[np.ndarray], np.ndarray]) -> str:
    """Return why the task is impossible in this state, as the end of a sentence, or ''.

    sees: returns whether points [N, 3] (m) are in view, bool [N]. A held thing is in reach.
    """
    for thing in truth.things:
        if thing.name not in (task.target, task.place):
            continue
        if thing.position[2] < 0:
            return f'the {thing.name} fell off the table'
        reached = thing.name != task.place or task.family == 'put'
        if (
            reached
            and thing.name != truth.held
            and not reaches(_gripper_points(task, thing)).all()
        ):
            return f'the {thing.name} is out of reach'
        if not sees(thing.position[None]).all():
            return f'the {thing.name} is out of view'
    room = have_room([task], truth.things).all()
    if task.family == 'return':
        x, y = task.spot or NOWHERE
        room &= reaches(np.array([(x, y, HOVER), (x, y, LOWEST)])).all()
        return '' if room else f'the {task.target} cannot be placed where it was'
    if not room:
        return f'there is no room {"in" if task.family == "put" else "beside"} the {task.place}'
    return ''


def _gripper_points(task: Task, thing: ObjectTruth) -> np.ndarray:
    """Return the gripper points of a task, float64 [2, 3]: above, then down."""
    x, y, z = thing.position
    match task.family:
        case 'reach' | 'hidden' | 'sequence':
            z = HOVER
        case 'push':  # starts beside the circle around its footprint
            y -= SIDES[task.side] * (np.hypot(*thing.size[:2]) / 2 + BEHIND)
            z = PUSHING
    return np.array([(x, y, HOVER), (x, y, z)])


class Judge:
    """Judges the success of one task by the true state in each control period.

    done: the task succeeded. wrong: the robot moved another object instead.
    """

    def __init__(self, task: Task, truth: Truth) -> None:
        self.task = task
        self._start = {thing.name: thing for thing in truth.things}
        self._held = truth.held  # held since an earlier task: no mistake
        self._steady: dict[str, int] = {}
        self._target = task.target
        if task.family == 'hidden' and task.spot:
            self._target = f'cover {distances(truth.covers, task.spot).argmin()}'
        self.done = self.wrong = False

    def see(self, truth: Truth) -> None:
        """Take the next true state."""
        for name, now in self._outcomes(truth).items():
            count = self._steady[name] = now * (self._steady.get(name, 0) + 1)
            if count >= (STEADY if self.task.family in (*REACHES, 'pick') else 1):
                if name == self._target:
                    self.done = True
                elif not self.done and name != self._held:
                    self.wrong = True

    def _outcomes(self, truth: Truth) -> dict[str, bool]:
        """Return for each movable thing, or each cover, whether the task is done with it."""
        if self.task.family == 'hidden':
            return {f'cover {i}': hovers(truth, at) for i, at in enumerate(truth.covers)}
        place = next((t for t in truth.things if t.name == self.task.place), None)
        return {
            thing.name: self._is_done(thing, truth, place)
            for thing in truth.things
            if thing.shape in MOVABLE and thing is not place
        }

    def _is_done(self, thing: ObjectTruth, truth: Truth, place: ObjectTruth | None) -> bool:
        start = self._start[thing.name]
        moved = thing.position - start.position
        let_go = truth.held != thing.name
        match self.task.family:
            case 'reach' | 'sequence':
                return hovers(truth, thing.position)
            case 'pick':
                return bottom(thing) > 0.06
            case 'put' if place:
                was_there = np.hypot(*(start.position - place.position)[:2]) < INSIDE
                return not was_there and let_go and lies_in(thing, place, truth.things)
            case 'return' if thing.name != self.task.target:
                return bool(np.linalg.norm(moved) > RETURNED)
            case 'return' if self.task.spot:
                was_away = distances(start.position, self.task.spot) >= AWAY
                return bool(was_away and let_go and rests_at(self.task.spot, thing, truth.things))
            case 'take' if place:
                was_there = lies_in(start, self._start[place.name], (*self._start.values(),))
                return was_there and let_go and lies_on_the_table(thing, truth.things)
            case 'next' if place:
                brought = np.hypot(*moved[:2]) > MOVED and let_go
                return bool(
                    brought
                    and not self._was_next(start)
                    and lies_on_the_table(thing, truth.things)
                    and gap(thing, place) < NEXT
                )
        enough = SIDES[self.task.side] * moved[1] > 0.08 and thing.position[2] > 0
        others = self.task.target != thing.name and self._target_moved(truth)
        return bool(enough and not others)

    def _was_next(self, start: ObjectTruth) -> bool:
        on_the_table = lies_on_the_table(start, tuple(self._start.values()))
        return on_the_table and gap(start, self._start[self.task.place]) < NEXT

    def _target_moved(self, truth: Truth) -> bool:
        """Return whether the target moved: an object that it pushes along is no mistake."""
        target = next(t for t in truth.things if t.name == self.task.target)
        apart = target.position - self._start[target.name].position
        return bool(np.hypot(*apart[:2]) > 0.02)
