"""Guidance through the Jacobian equals equation 2, central differences and plain denoising.

Source of equation 2 and algorithm 1: `benchmarks.latency.backward`.
"""

import numpy as np
import pytest
import torch
from latency_bench_cases import frame

from benchmarks.latency.backward import Backward, denoised, prefix_of, velocity_of
from embodied_kv.config import TINY
from embodied_kv.model.policy import Policy
from training.evaluate.actors import Chunking, Served
from training.evaluate.cases import Case

CHUNK, DIM, STEPS = 5, 3, 4
RNG = np.random.default_rng(0)
A, B = (RNG.normal(size=(CHUNK * DIM, CHUNK * DIM)) / 4 for _ in range(2))
NOISE, TARGET = RNG.normal(size=(2, CHUNK, DIM))
WEIGHTS = np.array([1, 1, 0.6, 0.3, 0])
CASES = Case('reach', 0, 0), Case('pick', 0, 3)


@pytest.fixture(scope='module')
def policy():
    torch.set_num_threads(1)
    return Policy.random(TINY, seed=1)


def papers(beta, steps=STEPS):
    """Return the actions of algorithm 1 in float64.

    tau goes from 0 (noise) to 1; the velocity tanh(A x) + tau B x has a closed-form Jacobian.
    """
    x, target, w = NOISE.ravel(), TARGET.ravel(), np.repeat(WEIGHTS, DIM)
    for step in range(steps):
        tau = step / steps
        v = np.tanh(A @ x) + tau * B @ x
        slope = (1 - np.tanh(A @ x) ** 2)[:, None] * A + tau * B
        jacobian = np.eye(len(x)) + (1 - tau) * slope  # Jacobian of the estimate, x + (1 - tau) v
        error = w * (target - x - (1 - tau) * v)
        r2 = (1 - tau) ** 2 / (tau**2 + (1 - tau) ** 2)
        pull = beta if tau == 0 else min((1 - tau) / (tau * r2), beta)
        x = x + (v + pull * jacobian.T @ error) / steps
    return x.reshape(CHUNK, DIM)


def turned(x, time):
    """Return the same velocity from data to noise, at time 1 - tau."""
    a, b = torch.from_numpy(A), torch.from_numpy(B)
    flat = x.flatten(1)
    return -(torch.tanh(flat @ a.T) + (1 - time) * (flat @ b.T)).view_as(x)


@pytest.mark.parametrize('beta', [0.0, 1.5, 5.0])
@pytest.mark.parametrize('steps', [1, 3, 4, 10])
def test_guided_steps_equal_equation_2_in_float64(beta, steps):
    noise, target = (torch.from_numpy(x)[None] for x in (NOISE, TARGET))
    weights = torch.from_numpy(WEIGHTS)[None, :, None]
    made = denoised(turned, noise, steps, target, weights, beta)
    np.testing.assert_allclose(made[0].numpy(), papers(beta, steps), atol=1e-12)


def test_the_pull_through_the_expert_is_its_jacobian_transposed(policy):
    """Check u . pull = error . J u for one step of a policy, with J u by central differences."""
    engine, rng = Served(policy, 'silent', 1, 1, 1).engine, np.random.default_rng(2)
    (handle,) = engine.prefill([frame(3).observation])
    with engine.kv.acquire(handle) as lease:
        velocity = velocity_of(policy.model, prefix_of(engine.kv.prefixes, [lease.row]))
    shape = 1, TINY.chunk_size, TINY.padded_action_dim
    x, target, u = (torch.from_numpy(rng.normal(size=shape)).float() for _ in range(3))
    weights = torch.from_numpy(rng.uniform(size=shape[:2])).float()[..., None]

    @torch.no_grad()
    def estimate(x):
        return (x - velocity(x, torch.tensor(1.0))).double()

    added = denoised(velocity, x, 1, target, weights, 2.0) - estimate(x)
    moved = (estimate(x + 1e-2 * u) - estimate(x - 1e-2 * u)) / 2e-2
    error = (target - estimate(x)) * weights
    assert float((u * added).sum()) == pytest.approx(2 * float((error * moved).sum()), rel=1e-3)
    identity = 2 * float((error * u).sum())
    assert float((u * added).sum()) != pytest.approx(identity, rel=1e-2)


def chunks(actor, frames):
    return np.stack([choice.chunk for choice in actor.act(frames)])


@pytest.mark.parametrize('schedule, leftover', [('zeros', 0.02), ('exponential', np.nan)])
def test_with_weights_of_0_it_is_plain_denoising(policy, schedule, leftover):
    frames = [frame(i, case, leftover, delay=0) for i, case in enumerate(CASES)]
    how = Chunking(STEPS, 'guided', schedule=schedule)
    plain = Served(policy, 'silent', 2, 1, 1, chunking=Chunking(STEPS))
    np.testing.assert_allclose(
        chunks(Backward(policy, 2, how), frames), chunks(plain, frames), atol=1e-6
    )


def test_each_of_a_batch_is_guided_as_if_alone(policy):
    frames = [frame(i, case, 0.03, delay=1 + i) for i, case in enumerate(CASES)]
    actor = Backward(policy, 2, Chunking(STEPS, 'guided', schedule='exponential'))
    alone = np.concatenate([chunks(actor, [one]) for one in frames])
    np.testing.assert_allclose(chunks(actor, frames), alone, atol=1e-6)


def test_guided_actions_come_nearer_to_what_the_arm_does(policy):
    frames = [frame(i, case, 0.03, delay=4) for i, case in enumerate(CASES)]
    target = np.stack([one.leftover[: TINY.chunk_size] for one in frames])
    ways = (
        Served(policy, 'silent', 2, 1, 1, chunking=Chunking(STEPS)),
        Backward(policy, 2, Chunking(STEPS, 'guided')),
    )
    off, guided = (np.abs(chunks(way, frames) - target)[:, :4].mean() for way in ways)
    assert guided < off / 2
