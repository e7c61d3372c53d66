"""Benchmark updates distinguishes a score that predicts revisions from one that does not."""

import json

import numpy as np
import pytest
import torch

from benchmarks import updates
from benchmarks.updates import SCORES, actions, correlation, signal, within
from embodied_kv.config import TINY
from embodied_kv.demo.sim.tasks import FAMILIES
from embodied_kv.model.policy import Policy
from training.evaluate import worlds

RATIO, FINAL, TOTAL, POSITION = range(1, 5)


def test_an_action_is_taken_back_by_what_its_own_period_says_first():
    values = [np.zeros((3, 7)), np.zeros((3, 7)), np.zeros((3, 7))]
    values[0][2, 0], values[2][0, 0] = 1.0, 4.0
    moved = np.array([[1.0, 2.0, 3.0], [3.0, 4.0, 5.0], [6.0, 6.0, 6.0]])
    found = actions([(each, moved) for each in values], np.full(7, 2.0))
    assert found[:, POSITION].tolist() == [1, 2, 1]  # two of the first chunk, one of the second
    assert found[:, 0].tolist() == [0, 1.5, 2.0]
    assert found[1, RATIO:POSITION].tolist() == [6 / 4, 6, 14]


def test_spearman_sees_order_alone():
    x = np.array([1.0, 2.0, 3.0, 4.0])
    assert correlation(x, x**3) == 1 and correlation(x, -np.exp(x)) == -1
    assert correlation(x, np.ones(4)) == 0


def test_equal_values_share_their_rank():
    x, y = np.array([1.0, 2.0, 3.0, 4.0]), np.array([5.0, 5.0, 7.0, 7.0])
    ranks = np.array([1.5, 1.5, 3.5, 3.5])
    assert correlation(x, y) == pytest.approx(np.corrcoef(x, ranks)[0, 1])
    assert correlation(x[::-1], y[::-1]) == pytest.approx(correlation(x, y))


def episodes(knows, count=12):
    """Return actions whose revision grows with their position and a share of their own.

    If `knows`, that share is the ratio; otherwise the ratio is random.
    """
    rng, made = np.random.default_rng(0), []
    for _ in range(count):
        place = np.tile(np.arange(1, 6), 20).astype(float)
        own = rng.random(100)
        ratio = own if knows else rng.random(100)
        made.append(np.stack([place + own, ratio, place, rng.random(100), place], 1))
    return made


@pytest.mark.parametrize('knows', [True, False])
def test_a_scale_that_knows_shows_within_a_position(knows, monkeypatch):
    monkeypatch.setattr(updates, 'RESAMPLES', 50)
    rows = {row['score']: row for row in signal(episodes(knows))}
    assert list(rows) == list(SCORES)
    assert (rows['ratio']['within_low'] > 0.9) == knows
    assert (rows['ratio']['within_low'] < 0.0 < rows['ratio']['within_high']) != knows
    assert rows['position']['overall_low'] > 0.8 and rows['position']['within'] == 0


def test_a_position_in_disguise_foretells_nothing_within():
    table = np.concatenate(episodes(False))
    assert within(table, FINAL) == 0 < correlation(table[:, 0], table[:, FINAL])


def test_the_last_line_is_every_figure(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(worlds, 'SECONDS', dict.fromkeys(FAMILIES, 0.4))
    monkeypatch.setattr(updates.evaluation, 'load', lambda _: Policy.random(TINY, seed=1))
    monkeypatch.setattr(updates.report, 'OUT', tmp_path)
    monkeypatch.setattr(updates, 'RESAMPLES', 5)
    torch.set_num_threads(1)
    updates.main('--episodes 1 --robots 2 --json'.split())
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found['episodes'] == len(FAMILIES) and [r['score'] for r in found['rows']] == list(
        SCORES
    )
    assert found['actions'] > 0 and found['ratio'][0] <= found['ratio'][1] <= found['ratio'][2]
    shown = found['confidence_signal']
    assert shown['pairs'] == len(FAMILIES)  # of 4 chunks; not across episodes
    assert shown['low'] <= shown['share'] <= shown['high']
