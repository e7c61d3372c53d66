"""Episodes with given outcomes and frames of a tiny policy for tests of `benchmarks.latency`."""

import numpy as np

from benchmarks.latency.points import Episodes, Point
from embodied_kv.config import TINY
from embodied_kv.demo.sim.tasks import BASIC
from embodied_kv.types import Observation
from training.evaluate.cases import Case, Frame

FOUR = BASIC
SIZE = TINY.vision.image_size
CASE = Case('reach', 0, 0)


def frame(number=0, case=CASE, leftover=np.nan, delay=1):
    """Return a frame of random pixels; its leftover actions are state + `leftover`, nan: none."""
    rng = np.random.default_rng((number, case.episode))
    state = rng.uniform(-1, 1, TINY.state_dim).astype(np.float32)
    observation = Observation(
        images=tuple(rng.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8) for _ in TINY.views),
        state=state,
        instruction='reach the red cube' + ', now' * case.episode,
        stamp=number,
        deadline=-np.inf,
        sequence=number,
        robot=case.name,
    )
    planned = np.full((10, TINY.action_dim), state + leftover)
    return Frame(case, number, 0, observation, None, None, planned, delay)


def episodes(outcomes, seam=0.3, jerk=100.0):
    """Return episodes, one per outcome; the four families alternate in each scene."""
    n = len(outcomes)
    numbers = np.arange(n)
    return Episodes(
        families=tuple(FOUR[i % 4] for i in range(n)),
        scenes=numbers // 4,
        outcomes=outcomes,
        seconds=1.0 + numbers % 3,
        chunks=np.full(n, 9.0),
        jerk_rms=np.full(n, jerk),
        jerk_max=np.full(n, 9 * jerk),
        joint_path=np.full(n, 2.5),
        seam=seam * (1 + numbers % 5),
    )


def at(way, latency_ms, **more):
    return Point(way, float(latency_ms), **more)
