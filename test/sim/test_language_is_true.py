"""What is said about a moment is what is there."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.sim.expert import Phase
from embodied_kv.sim.language import (
    SCENE_QUESTIONS,
    ask_done,
    ask_held,
    narrate,
    say_subtask,
)
from embodied_kv.sim.scene import MOVABLE, draw_scene
from embodied_kv.sim.tabletop import ObjectTruth, Truth
from embodied_kv.sim.tasks import Task, task_scene


def drawn(seed: int, held: int = -1) -> Truth:
    scene = draw_scene(task_scene('put'), np.random.default_rng(seed))
    things = tuple(
        ObjectTruth(
            t.name,
            t.shape,
            t.colour,
            np.array([*t.position, t.size[2] / 2]),
            t.yaw,
            np.array(t.size),
        )
        for t in scene.things
    )
    return Truth(things, np.zeros(3), things[held].name if held >= 0 else '')


@given(st.integers(0, 10_000), st.sampled_from(sorted(SCENE_QUESTIONS)))
def test_answers_agree_with_the_scene(seed, kind):
    truth, rng = drawn(seed), np.random.default_rng(seed)
    found = SCENE_QUESTIONS[kind](truth, rng)
    if found is None:
        assert kind in ('colour', 'side')
        return
    question, answer = found
    by_name = {thing.name: thing for thing in truth.things}
    match kind:
        case 'held':
            assert answer == 'nothing'
        case 'count':
            assert int(answer) == sum(t.shape in MOVABLE for t in truth.things)
        case 'colour':
            shape = question.removeprefix('What colour is the ').removesuffix('?')
            assert [t.colour for t in truth.things if t.shape == shape] == [answer]
        case 'shape':
            colour = question.split()[4]
            assert [t.shape for t in truth.things if t.colour == colour] == [answer]
        case 'side':
            words = question.removesuffix('?').split()
            a, b = by_name[' '.join(words[2:4])], by_name[' '.join(words[-2:])]
            left = a.position[1] > b.position[1]
            assert answer == ('yes' if left == (words[4] == 'left') else 'no')
        case 'exists':
            name = question.removeprefix('Do you see the ').removesuffix('?')
            assert (name in by_name) == (answer == 'yes')


def test_what_is_held_is_named():
    truth = drawn(1, held=1)
    assert ask_held(truth, np.random.default_rng(0))[1] == f'the {truth.things[1].name}'


@pytest.mark.parametrize('phase', Phase)
def test_every_phase_has_words_for_every_family(phase):
    truth = drawn(2, held=1)
    for task in (
        Task('reach', 'red cube'),
        Task('pick', 'red cube'),
        Task('put', 'red cube', place='blue bin'),
        Task('push', 'red cube', side='left'),
    ):
        for words in (say_subtask(phase, task, truth), narrate(phase, task, truth)):
            assert words and '{' not in words


def test_done_is_when_the_expert_holds_still():
    task = Task('reach', 'red cube')
    assert ask_done(Phase.HOLD, task, drawn(0)) == ('Is it done?', 'yes')
    assert ask_done(Phase.ABOVE, task, drawn(0)) == ('Is it done?', 'no')
    assert ask_done(Phase.LOST, None, drawn(0)) is None
