"""All modes of serving text give the same actions: same noise, same chunks, same episode."""

from contextlib import ExitStack, closing

import numpy as np
import pytest
import torch

from embodied_kv.config import TINY
from embodied_kv.demo.sim.tasks import FAMILIES
from embodied_kv.model.policy import Policy
from training.evaluate import worlds
from training.evaluate.actors import MODES, Served
from training.evaluate.cases import Case, Setting
from training.evaluate.report import digest, pair_rows
from training.evaluate.worlds import World, run

CASES = [Case(family, 0, episode) for episode in range(2) for family in FAMILIES[:2]]
FRAMES = 7


@pytest.fixture(scope='module')
def served():
    """Return outcomes and actor by mode, of two robots that run four short episodes."""
    torch.set_num_threads(1)
    policy, setting = Policy.random(TINY, seed=1), Setting(dt=0.1, latency=0.03)
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(worlds, 'SECONDS', dict.fromkeys(FAMILIES, FRAMES * setting.dt))
        tables = [
            stack.enter_context(closing(World(TINY.vision.image_size, setting))) for _ in range(2)
        ]
        actors = {
            mode: Served(policy, mode, robots=2, steps=3, max_tokens=8)
            for mode in (*MODES, 'silent')
        }
        return {mode: (run(tables, CASES, actor), actor) for mode, actor in actors.items()}


@pytest.mark.parametrize('mode', ['shared', 'batched', 'silent'])
def test_every_way_of_serving_gives_the_same_episodes(served, mode):
    for one, other in zip(served['isolated'][0], served[mode][0], strict=True):
        np.testing.assert_array_equal(one.first, other.first)
        assert (one.case, one.seconds, one.path) == (other.case, other.seconds, other.path)
    assert digest(served[mode][0]) == digest(served['isolated'][0])


@pytest.mark.parametrize('mode', ['shared', 'batched'])
def test_every_way_of_serving_says_the_same(served, mode):
    said, other = ({a.question: a.said for a in served[m][1].answers} for m in ('isolated', mode))
    assert len(said) == len(served['isolated'][1].answers) > len(CASES) * FRAMES
    assert said == other


@pytest.mark.parametrize('mode', MODES)
def test_every_stream_is_heard_to_its_end(served, mode):
    engine = served[mode][1].engine
    assert engine.kv.streams.live() == []
    assert engine.kv.stats().evictions == 0
    engine.kv.check_integrity()


def test_only_isolated_prefills_twice(served):
    prefills = {mode: actor.engine.kv.stats().prefills for mode, (_, actor) in served.items()}
    frames = len(CASES) * FRAMES
    assert prefills == dict(isolated=2 * frames, shared=frames, batched=frames, silent=frames)


def test_the_pairs_say_so(served):
    rows = pair_rows({mode: served[mode][0] for mode in MODES})
    assert [row['modes'] for row in rows] == [
        'isolated, shared',
        'isolated, batched',
        'shared, batched',
    ]
    for row in rows:
        assert (row['n'], row['same'], row['first_chunks']) == (len(CASES), 1, 0)
