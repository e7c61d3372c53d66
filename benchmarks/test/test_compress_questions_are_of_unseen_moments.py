"""The compared frames depend only on their number and show scenes not used for training."""

import numpy as np
import pytest

from benchmarks.compress.questions import moments
from embodied_kv.config import NEEDLE, TINY
from embodied_kv.demo.sim.language import SCENE_QUESTIONS
from embodied_kv.demo.sim.tasks import BASIC
from training.evaluate import worlds
from training.evaluate.cases import FIRST_SCENE, SCENES_PER_SEED


@pytest.fixture(scope='module')
def asked():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worlds, 'SECONDS', dict.fromkeys(BASIC, 0.8))
        yield [list(moments(TINY, len(BASIC))) for _ in range(2)]


def test_the_same_frames_and_questions_twice(asked):
    for (one, questions), (other, again) in zip(*asked, strict=True):
        assert questions == again
        pairs = zip(one.observation.images, other.observation.images, strict=True)
        assert all(np.array_equal(a, b) for a, b in pairs)


def test_scenes_are_no_ones_else(asked):
    scenes = [frame.scene for frame, _ in asked[0]]
    assert len(set(scenes)) == len(BASIC) and min(scenes) >= FIRST_SCENE
    seeds = {(scene - FIRST_SCENE) // SCENES_PER_SEED for scene in scenes}
    assert not seeds & {0, 1, 2}
    assert [frame.case.family for frame, _ in asked[0]] == list(BASIC)


def test_every_kind_is_asked(asked):
    kinds = [[question.kind for question in questions] for _, questions in asked[0]]
    assert all(len(set(some)) == len(some) for some in kinds)
    assert set().union(*kinds) == {'subtask', 'narrate', 'done', *SCENE_QUESTIONS} - {
        'inside',
        'where',
    }


def test_a_model_without_the_tabletops_cameras_is_refused():
    with pytest.raises(ValueError, match='needle sees no tabletop: it needs the views front, wri'):
        next(moments(NEEDLE, 1))
