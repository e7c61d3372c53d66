"""A robot's next frame is due when the execution horizon of its chunk is over."""

from contextlib import closing

import numpy as np
import pytest
import torch

from embodied_kv.config import TINY
from embodied_kv.control.execution_horizon import parse
from embodied_kv.demo.sim.tasks import FAMILIES
from embodied_kv.model.policy import Policy
from training.evaluate import evaluation, worlds
from training.evaluate.__main__ import main
from training.evaluate.actors import Served
from training.evaluate.cases import Case, Choice, Setting
from training.evaluate.worlds import World, run

CASES = [Case(family, 0, 0) for family in ('reach', 'push')]
SIZE = TINY.vision.image_size


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(worlds, 'SECONDS', dict.fromkeys(FAMILIES, 0.6))
    torch.set_num_threads(1)


class Told:
    """An actor that stays in place and returns the given execution horizons in turn."""

    def __init__(self, *execution_horizons):
        self._horizons, self.frames = iter(execution_horizons), []

    def act(self, frames):
        self.frames += frames
        return [
            Choice(np.tile(frame.observation.state, (4, 1)), next(self._horizons))
            for frame in frames
        ]

    def finish(self):
        pass


def test_frames_are_due_when_the_horizon_is_over():
    actor = Told(1, 3, None, 9)
    with closing(World(SIZE, Setting(dt=0.1, latency=0.04, every=1))) as world:
        (outcome,) = run([world], CASES[:1], actor)
    assert [frame.observation.sequence for frame in actor.frames] == [0, 1, 4, 5]
    assert [frame.number for frame in actor.frames] == [0, 1, 2, 3]
    assert outcome.execution_horizons == (1, 3, 1, 9)


def outcomes(every, policy=None):
    setting = Setting(dt=0.1, latency=0.04, every=every)
    actor = Served(Policy.random(TINY, seed=1), 'silent', 1, 1, 1, horizon_policy=policy)
    with closing(World(SIZE, setting)) as world:
        return run([world], CASES, actor)


@pytest.mark.parametrize('periods', [1, 3])
def test_a_static_horizon_equals_a_frame_every_so_many_periods(periods):
    for one, other in zip(outcomes(periods), outcomes(1, parse(f'static:{periods}')), strict=True):
        np.testing.assert_array_equal(one.first, other.first)
        assert (one.path, one.execution_horizons) == (other.path, other.execution_horizons)


def test_a_policy_sees_the_updates_of_each_chunk():
    seen = []

    def rule(updates):
        seen.append(updates.shape)
        return len(seen)

    done = outcomes(1, rule)
    assert set(seen) == {(10, TINY.chunk_size)}
    horizons = [n for outcome in done for n in outcome.execution_horizons]
    assert horizons == list(range(1, len(seen) + 1))


def test_what_is_no_policy_is_refused_in_a_line(capsys, monkeypatch):
    monkeypatch.setattr(evaluation, 'load', lambda _: Policy.random(TINY))
    with pytest.raises(SystemExit):
        main(['--execution-horizon', 'static:0'])
    said = capsys.readouterr().err
    assert said.startswith("evaluate: horizon policy 'static:0': H must be")
