"""Questions of the comparison: frames of scenes unseen in training, and the truth about them.

Each frame is one moment, drawn at random, of the expert's way through an episode of its own, so
frames differ as much as scenes do. Every kind of question that a frame allows is asked, except
kinds that `tabletop_long` was not trained on. Tasks are of its four families. Knows worlds and
questions. Does not know what answers them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np

from embodied_kv.config import ModelConfig
from embodied_kv.demo.sim.scene import CAMERAS
from embodied_kv.demo.sim.tasks import BASIC
from training.evaluate.cases import Case, Frame, Setting
from training.evaluate.questions import Question, every_question, expert_plan
from training.evaluate.worlds import World

SCENES = 9  # the set of scenes; evaluation takes 0, 1 and 2
MOMENT_RNG = 3  # purpose of a scene's random stream
LATENCY = 0.04  # s, as a policy's
UNTAUGHT = ('inside', 'where')  # kinds that `tabletop_long` was not trained on


def moments(
    config: ModelConfig, count: int, scenes: int = SCENES
) -> Iterator[tuple[Frame, list[Question]]]:
    """Yield `count` frames, families of tasks in turn, and the questions about each.

    Raises ValueError for a model whose views are not the tabletop's cameras.
    """
    if config.views != CAMERAS:
        raise ValueError(
            f'{config.name} sees no tabletop: it needs the views {", ".join(CAMERAS)}, and has '
            f'{", ".join(config.views)}'
        )
    with closing(World(config.vision.image_size, Setting(config.action_dt, LATENCY))) as world:
        for number in range(count):
            case = Case(BASIC[number % len(BASIC)], scenes, number)
            frame = _moment(world, case)
            _, phase = expert_plan([frame], chunk_size=1)
            asked = every_question(frame, phase[0])
            yield frame, [question for question in asked if question.kind not in UNTAUGHT]


def _moment(world: World, case: Case) -> Frame:
    world.begin(case)
    frames = []
    while not world.is_over:
        frames.append(world.look())
        chunks, _ = expert_plan(frames[-1:], chunk_size=2)
        world.step(chunks[0])
    rng = np.random.default_rng((case.scene_seed, MOMENT_RNG))
    return frames[rng.integers(len(frames))]
