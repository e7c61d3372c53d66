"""Guided real-time chunking, v - min(c / r^2, beta) w (A - (x - t v)), equals float64."""

import math

import numpy as np
import pytest
import torch

from embodied_kv.config import TINY
from embodied_kv.engine.guidance import gain
from embodied_kv.engine.shapes import Kind
from embodied_kv.runtime.graph_cache import Shape
from embodied_kv.types import Guide

CHUNK, DIM = TINY.chunk_size, TINY.action_dim
WEIGHTS = np.array([1, 1, 0.6, 0.3, 0, 0])


def guide(actions=0.02, delay=2, weights=WEIGHTS):
    return Guide(np.full((CHUNK, DIM), actions, np.float32), delay, np.asarray(weights))


def chunks(engine, observations, guides=(), noises=None):
    handles = engine.prefill(observations)
    leases = [engine.kv.acquire(handle) for handle in handles]
    made = engine.denoise(leases, [math.inf] * len(leases), noises, guides)
    for lease in leases:
        lease.release()
    return made


def reference(v_of, x, target, weights, steps, beta):
    """Return x after guided Euler steps in float64.

    tau = 1 - t goes from 0 to 1, as in the paper; v_of(x, t) is the velocity of the model, which
    points from action to noise.
    """
    x = x.astype(np.float64)
    for step in range(steps):
        tau = step / steps
        velocity = -v_of(x, 1 - tau)
        finished = x + (1 - tau) * velocity
        r2 = (1 - tau) ** 2 / (tau**2 + (1 - tau) ** 2)
        pull = beta if tau == 0 else min((1 - tau) / (tau * r2), beta)
        x = x + (velocity + pull * weights[:, None] * (target - finished)) / steps
    return x


@pytest.mark.parametrize('beta', [0.0, 1.5, 5.0])
def test_guided_euler_steps_equal_the_reference(make_engine, observe, beta):
    engine = make_engine(rtc='guided', rtc_max_guidance=beta, time_budget=False)
    noises = np.random.default_rng(0).standard_normal((1, CHUNK, TINY.padded_action_dim))
    noises = noises.astype(np.float32)
    seen = observe(1)
    (made,) = chunks(engine, [seen], [guide()], noises)
    plain = make_engine(time_budget=False)
    (handle,) = plain.prefill([seen])
    lease = plain.kv.acquire(handle)
    model = plain.policy.model

    def v_of(x, t):
        (modulation,) = model.expert.modulation(torch.tensor([t], dtype=torch.float32))
        given = torch.from_numpy(x).float()[None], modulation, view
        return model.velocity(*given, model.suffix_rope(view.positions))[0].double().numpy()

    with torch.inference_mode():
        view = plain.graphs[Shape(Kind.DENOISE, 1)].view.bind([lease.row], [-1])
        target = plain.policy.targets(guide().actions, seen.state)
        x = reference(v_of, noises[0], target, WEIGHTS, made.steps, beta)
    expected = plain.policy.actions(x.astype(np.float32), seen.state)
    np.testing.assert_allclose(made.values, expected, atol=2e-5)


def test_the_gain_is_the_papers_and_never_above_the_most():
    times = torch.tensor([1.0, 0.9, 0.5, 0.25, 0.01])
    tau = 1 - times.numpy()
    with np.errstate(divide='ignore'):
        papers = (1 - tau) / tau * (tau**2 + (1 - tau) ** 2) / (1 - tau) ** 2
    np.testing.assert_allclose(gain(times, 5.0), np.minimum(papers, 5.0), rtol=1e-6)
    assert gain(times, 5.0)[0] == 5.0 and gain(times, 0.0).tolist() == [0.0] * 5


def test_the_more_it_weighs_the_nearer_the_leftover(make_engine, observe):
    engine = make_engine(rtc='guided')
    far = []
    for weight in (0.0, 0.5, 1.0):
        (made,) = chunks(engine, [observe(1)], [guide(weights=np.full(CHUNK, weight))])
        far.append(np.abs(made.values - guide().actions).max())
    assert far[0] > far[1] > far[2]


@pytest.mark.parametrize('rtc', ['guided', 'trained'])
def test_no_leftover_is_no_guidance(make_engine, observe, rtc):
    (plain,) = chunks(make_engine(), [observe(1)])
    engine = make_engine(rtc=rtc)
    for guides in ((), [None], [guide(delay=0, weights=np.zeros(CHUNK))]):
        (made,) = chunks(engine, [observe(1)], guides)
        np.testing.assert_allclose(made.values, plain.values, atol=1e-6)


def test_off_reads_no_guide(make_engine, observe):
    engine = make_engine()
    (plain,), (guided,) = chunks(engine, [observe(1)]), chunks(engine, [observe(1)], [guide()])
    assert np.array_equal(plain.values, guided.values)


@pytest.mark.parametrize('rtc', ['guided', 'trained'])
def test_each_chunk_of_a_batch_goes_on_from_its_own(make_engine, observe, rtc):
    engine = make_engine(rtc=rtc, max_batch_robots=4, rows=16)
    frames = [observe(1, robot=name) for name in 'abc']
    guides = [guide(0.01, 1), None, guide(-0.03, 3, np.linspace(1, 0, CHUNK))]
    together = chunks(engine, frames, guides)
    for frame, one, made in zip(frames, guides, together, strict=True):
        (alone,) = chunks(engine, [frame], [one])
        np.testing.assert_allclose(made.values, alone.values, atol=1e-5)


@pytest.mark.parametrize('rtc', ['guided', 'trained'])
def test_what_is_not_planned_holds_nothing(make_engine, observe, rtc):
    engine, partly = make_engine(rtc=rtc), guide(weights=np.ones(CHUNK))
    partly.actions[1:] = np.nan
    (made,) = chunks(engine, [observe(1)], [partly])
    short = guide(delay=1, weights=np.eye(CHUNK)[0])
    (expected,) = chunks(engine, [observe(1)], [short])
    np.testing.assert_allclose(made.values, expected.values, atol=1e-6)


@pytest.mark.parametrize('rtc', ['guided', 'trained'])
@pytest.mark.parametrize(
    ('wrong', 'said'),
    [
        (guide(delay=CHUNK), f'delay must be from 0 to {CHUNK - 1} actions .got {CHUNK}'),
        (guide(delay=-1), f'delay must be from 0 to {CHUNK - 1} actions .got -1'),
        (guide(weights=np.full(CHUNK, np.nan)), 'weights of a guide must be from 0 to 1'),
        (guide(weights=np.full(CHUNK, 1.5)), 'weights of a guide must be from 0 to 1'),
        (guide(1e30), r"up to 1e\+30 in the policy's units"),
        (guide(np.finfo(np.float32).max), r'actions of a guide must be at most 1e\+09'),
        (Guide(np.zeros((CHUNK, 3)), 0, WEIGHTS), r'must have \(6, 7\) actions'),
        (Guide(np.zeros((2, DIM)), 0, WEIGHTS), r'a guide must have .* \(got \(2, 7\)'),
    ],
)
def test_a_guide_that_does_not_fit_is_refused(make_engine, observe, rtc, wrong, said):
    engine = make_engine(rtc=rtc)
    with pytest.raises(ValueError, match=said):
        chunks(engine, [observe(1)], [wrong])


def test_an_unknown_mode_is_refused_by_name(make_engine):
    with pytest.raises(ValueError, match="engine.rtc must be off, guided or trained .got 'on'"):
        make_engine(rtc='on')
