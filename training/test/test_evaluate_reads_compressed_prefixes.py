"""Evaluation passes keep ratios on to the engine, and refuses bad values in one line."""

from contextlib import closing

import pytest
import torch

from embodied_kv.config import TINY
from embodied_kv.demo.sim.tasks import FAMILIES
from embodied_kv.model.policy import Policy
from training.evaluate import evaluation, worlds
from training.evaluate.__main__ import main
from training.evaluate.actors import Compressed, Served
from training.evaluate.cases import Case, Setting
from training.evaluate.worlds import World, run

CASES = [Case(family, 0, 0) for family in FAMILIES]


@pytest.fixture(scope='module')
def acted():
    """Return outcomes and actor of two robots, by what is compressed."""
    torch.set_num_threads(1)
    policy, setting = Policy.random(TINY, seed=1), Setting(dt=0.1, latency=0.03)
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worlds, 'SECONDS', dict.fromkeys(FAMILIES, 0.5))
        tables = [World(TINY.vision.image_size, setting) for _ in range(2)]
        with closing(tables[0]), closing(tables[1]):
            for name, what in dict(
                whole=Compressed(),
                actions=Compressed(action_keep_ratio=0.2, compression_queries='row'),
                words=Compressed(language_keep_ratio=0.2),
                both=Compressed(0.3, 0.2, 'h2o', 'row'),
            ).items():
                actor = Served(policy, 'batched', 2, 3, 8, what)
                found[name] = run(tables, CASES, actor), actor
    return found


def chunks(outcomes):
    return [outcome.first.tobytes() for outcome in outcomes]


def test_actions_change_where_they_read_less(acted):
    whole = chunks(acted['whole'][0])
    assert chunks(acted['words'][0]) == whole
    assert chunks(acted['actions'][0]) != whole != chunks(acted['both'][0])


def test_every_copy_finds_room_and_is_given_back(acted):
    for _, actor in acted.values():
        assert (
            actor.engine.kv.copies.allocation_failures == 0 and not actor.engine.kv.streams.live()
        )
        actor.engine.kv.check_integrity()
    assert len(acted['words'][1].answers) == len(acted['whole'][1].answers) > 0


@pytest.mark.parametrize(
    'arguments, message',
    [
        (['--action-keep-ratio', '0'], 'keep ratio must be in [0.01, 1] (got 0.0)'),
        (['--language-keep-ratio', '1.5'], 'keep ratio must be in [0.01, 1] (got 1.5)'),
        (['--compression-method', 'zip'], "(got 'zip')"),
    ],
)
def test_nonsense_is_refused(capsys, monkeypatch, arguments, message):
    monkeypatch.setattr(evaluation, 'load', lambda _: Policy.random(TINY))
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    (line,) = capsys.readouterr().err.splitlines()
    assert caught.value.code == 2 and message in line


def test_the_command_line_says_what_is_compressed():
    ratios = '--action-keep-ratio 0.1 --language-keep-ratio 0.2'
    words = f'{ratios} --compression-method h2o --compression-queries row'.split()
    args = evaluation.parser().parse_args(words)
    assert evaluation.compressed(args) == Compressed(0.1, 0.2, 'h2o', 'row')
    assert evaluation.compressed(evaluation.parser().parse_args([])) == Compressed()
