"""A chunk has U[step, action] = |x before - x after| over the robot's dimensions, for Kairos."""

import math

import numpy as np
import pytest
import torch

from embodied_kv.runtime.graph_cache import Graph


@pytest.mark.parametrize('steps', [1, 4, 10])
@torch.inference_mode()
def test_updates_are_differences_of_x(make_engine, observe, monkeypatch, steps):
    engine = make_engine(min_euler_steps=1, max_batch_robots=2)
    (handle,) = engine.prefill([observe(1)])
    c, denoiser, seen = engine.policy.config, engine._denoiser, []
    replay = Graph.replay

    def recorded(graph):
        """Record x after each replay; the first replay begins the chunk."""
        replay(graph)
        seen.append(denoiser._x.clone())

    monkeypatch.setattr(Graph, 'replay', recorded)
    noise = torch.randn(1, c.chunk_size, c.padded_action_dim).numpy()
    made, updates = denoiser.run([handle.row], noise, steps)
    x = torch.stack(seen)[:, 0, :, : c.action_dim]
    assert len(x) == steps + 1 and np.array_equal(x[0], noise[0, :, : c.action_dim])
    wanted = (x[:-1] - x[1:]).double().norm(dim=-1).numpy()
    assert updates.shape == (1, steps, c.chunk_size)
    np.testing.assert_allclose(updates[0], wanted, atol=1e-5, rtol=1e-5)
    assert np.array_equal(made[0, :, : c.action_dim], x[-1])


def test_a_chunk_carries_its_own_updates(make_engine, observe):
    engine = make_engine(max_batch_robots=2)
    handles = engine.prefill([observe(1), observe(2, robot='other')])
    together = denoised(engine, handles)
    for handle, chunk in zip(handles, together, strict=True):
        (alone,) = denoised(engine, [handle])
        assert chunk.updates.shape == (chunk.steps, len(chunk.values))
        np.testing.assert_allclose(chunk.updates, alone.updates, atol=1e-5)
    assert not np.allclose(together[0].updates, together[1].updates)


def denoised(engine, handles):
    leases = [engine.kv.acquire(handle) for handle in handles]
    chunks = engine.denoise(leases, [math.inf] * len(leases))
    for lease in leases:
        lease.release()
    return chunks
