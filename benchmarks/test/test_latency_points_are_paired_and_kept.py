"""Points of `benchmarks.latency`: same episodes in every way, measured once, also after a cut."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from latency_bench_cases import FOUR, at, episodes

from benchmarks.latency import __main__ as latency
from benchmarks.latency.points import Conditions, Episodes, measure
from benchmarks.latency.store import Store
from benchmarks.latency.ways import WAYS
from embodied_kv.config import TINY
from embodied_kv.model.policy import Policy
from training.evaluate import worlds
from training.evaluate.actors import Chunking

GUIDANCE = Chunking(schedule='exponential')
FEW = Conditions(('reach', 'push'), 1, 3, False, 2, GUIDANCE)


@pytest.fixture(scope='module')
def policy():
    torch.set_num_threads(1)
    return Policy.random(TINY, seed=1)


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(worlds, 'SECONDS', dict.fromkeys(worlds.SECONDS, 0.8))


def test_every_way_meets_the_same_cases_noise_and_latencies(short, policy):
    found = {way: measure(policy, at(way, 200, spread=0.5), FEW) for way in WAYS}
    for way, some in found.items():
        for one, other in zip(some, found['off'], strict=True):
            assert one.case == other.case
            np.testing.assert_allclose(one.first, other.first, atol=1e-6)
            assert one.execution_horizons == other.execution_horizons
            assert len(one.seams) == len(other.seams) > 1
            apart = np.abs(one.joints - other.joints).max()
            assert (way == 'off') == (apart == 0), f'{way} goes on as off does'


def test_episodes_are_the_families_of_each_scene_in_turn():
    conditions = dataclasses.replace(FEW, families=FOUR, episodes=2)
    cases = conditions.cases
    assert [case.family for case in cases] == list(FOUR) * 2
    assert [case.episode for case in cases] == [0] * 4 + [1] * 4
    assert {case.seed for case in cases} == {3}


def test_the_first_take_over_counts_neither_as_a_seam_nor_as_jerk(short, policy):
    (one, _) = measure(policy, at('off', 100), FEW)
    thrown = one.joints.copy()
    thrown[: round(one.moments[1] / 0.01) - 3] += 1.0  # before the second chunk has an effect
    alone = dict(seams=one.seams[:1], moments=one.moments[:1])
    changed = dataclasses.replace(one, joints=thrown), dataclasses.replace(one, **alone)
    kept = Episodes.made([one, *changed])
    assert kept.seam[:2].tolist() == [one.seams[1:].max()] * 2 and np.isnan(kept.seam[2])
    for jerk in (kept.jerk_rms, kept.jerk_max):
        assert jerk[0] == jerk[1] > 0 and np.isnan(jerk[2])
    path = np.linalg.norm(np.diff(one.joints[:, :6], axis=0), axis=1).sum()
    np.testing.assert_allclose(kept.joint_path[[0, 2]], path, rtol=1e-6)


def test_what_the_second_chunk_does_at_once_is_jerk(short, policy):
    (one, _) = measure(policy, at('off', 100), FEW)
    thrown = one.joints.copy()
    thrown[round(one.moments[1] / 0.01) :] += 1.0
    kept = Episodes.made([one, dataclasses.replace(one, joints=thrown)])
    assert kept.jerk_max[1] > 1e6 > kept.jerk_max[0]


def test_what_is_kept_is_read_as_it_was(tmp_path):
    store, point = Store(tmp_path / 'points', FEW, 'w'), at('off', 50)
    made = dataclasses.replace(episodes('s.ws'), seam=np.array([0.1 + 0.2, np.nan, 0, 1e-9]))
    assert not store.has(point)
    store.write(point, made)
    read = store.read(point)
    for name, value in vars(made).items():
        np.testing.assert_array_equal(getattr(read, name), value)
    assert json.loads(store.path(point).read_text())['settings']['way'] == 'off'


CHANGES = dict(
    weights=lambda store, point: (dataclasses.replace(store, weights='v'), point),
    episodes=lambda store, point: (conditioned(store, episodes=2), point),
    crowded=lambda store, point: (conditioned(store, crowded=True), point),
    guidance=lambda store, point: (conditioned(store, guidance=Chunking(horizon=3)), point),
    spread=lambda store, point: (store, dataclasses.replace(point, spread=0.5)),
    latency=lambda store, point: (store, dataclasses.replace(point, latency_ms=101.0)),
    steps=lambda store, point: (store, dataclasses.replace(point, euler_steps=3)),
)


def conditioned(store, **changes):
    return dataclasses.replace(store, conditions=dataclasses.replace(store.conditions, **changes))


@pytest.mark.parametrize('change', CHANGES)
def test_figures_of_other_conditions_are_another_file(tmp_path, change):
    store, point = Store(tmp_path, FEW, 'w'), at('guided', 100)
    store.write(point, episodes('ssss'))
    other, there = CHANGES[change](store, point)
    assert store.has(point) and not other.has(there)


@pytest.mark.parametrize('way', ['off', 'trained', 'ensemble'])
def test_what_is_not_guided_does_not_depend_on_guidance(tmp_path, way):
    store = Store(tmp_path, FEW, 'w')
    store.write(at(way, 100), episodes('ssss'))
    assert conditioned(store, guidance=Chunking(rtc_max_guidance=1.0)).has(at(way, 100))


def test_a_run_that_was_cut_off_goes_on_to_the_same_figures(short, policy, tmp_path, monkeypatch):
    plan = [at(way, ms) for ms in (0, 200) for way in ('off', 'vjp')]
    whole = latency.gathered(policy, plan, Store(tmp_path / 'whole', FEW, 'w'), quiet=True)
    measured, store = [], Store(tmp_path / 'cut', FEW, 'w')

    def cut_off(*given):
        if len(measured) == 2:
            given[-1]()  # within an episode of the third point
            raise KeyboardInterrupt
        measured.append(given[1])
        return measure(*given)

    monkeypatch.setattr(latency, 'measure', cut_off)
    with pytest.raises(KeyboardInterrupt):
        latency.gathered(policy, plan, store, quiet=True)
    assert [store.has(point) for point in plan] == [True, True, False, False]
    measured.append(None)  # do not interrupt again
    resumed = latency.gathered(policy, plan, store, quiet=True)
    assert measured == [*plan[:2], None, *plan[2:]] and list(resumed) == plan
    for point in plan:
        for name, value in vars(whole[point]).items():
            np.testing.assert_array_equal(getattr(resumed[point], name), value)
