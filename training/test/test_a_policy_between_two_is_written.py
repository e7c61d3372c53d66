"""`training.policy.interpolate`: weights between those of two policies."""

import sys
from dataclasses import replace

import pytest
import torch

from embodied_kv.config import TINY
from embodied_kv.model.checkpoints.open import open_checkpoint
from embodied_kv.model.checkpoints.own import MAX_MEMORY_ROWS, save
from embodied_kv.model.policy import Policy
from training.policy import interpolate


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a random policy and returns its folder."""

    def made(name, seed, config=TINY, **card):
        policy = Policy.random(config, seed)
        parts = config, policy.processing.normalizer, policy.tokenizer
        save(tmp_path / name, policy.model.state_dict(), *parts, card)
        return tmp_path / name

    return made


def interpolated(monkeypatch, *words):
    monkeypatch.setattr(sys, 'argv', ['interpolate', *map(str, words)])
    interpolate.main()
    return dict(open_checkpoint(words[-1]).load().model.named_parameters())


def test_each_weight_is_between_the_two(write, tmp_path, monkeypatch):
    folders = write('first', 1), write('second', 2)
    first, second = (
        dict(open_checkpoint(folder).load().model.named_parameters()) for folder in folders
    )
    found = interpolated(monkeypatch, *folders, 0.25, tmp_path / 'between')
    for name, p in found.items():
        wanted = 0.75 * first[name].float() + 0.25 * second[name].float()
        torch.testing.assert_close(p.float(), wanted, rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize(('share', 'end'), [(0.0, 'first'), (1.0, 'second')])
def test_the_ends_are_the_policies(write, tmp_path, monkeypatch, share, end):
    folders = dict(first=write('first', 1), second=write('second', 2))
    found = interpolated(monkeypatch, *folders.values(), share, tmp_path / 'between')
    for name, p in open_checkpoint(folders[end]).load().model.named_parameters():
        assert torch.equal(found[name], p.bfloat16().to(found[name].dtype)), name


@pytest.mark.parametrize('share', [-0.1, 1.1, float('nan')])
def test_a_share_outside_0_to_1_is_refused(write, tmp_path, monkeypatch, share):
    with pytest.raises(SystemExit, match='share must be from 0 to 1'):
        interpolated(monkeypatch, write('a', 1), write('b', 2), share, tmp_path / 'c')


def test_policies_of_other_dimensions_or_limits_are_refused(write, tmp_path, monkeypatch):
    one = write('one', 1)
    for other in (
        write('narrow', 1, replace(TINY, chunk_size=TINY.chunk_size - 1)),
        write('remembers', 1, **{MAX_MEMORY_ROWS: '4'}),
    ):
        with pytest.raises(SystemExit, match='of both policies must be equal'):
            interpolated(monkeypatch, one, other, 0.5, tmp_path / 'between')
    assert not (tmp_path / 'between').exists()
