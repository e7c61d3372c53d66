"""A prefix row keeps its bytes from its prefill to its last lease, whatever else is computed."""

import hashlib
import time

import torch


def digest(engine, row):
    k, v = engine.kv.prefixes.row(row)
    return hashlib.sha256(k.numpy().tobytes() + v.numpy().tobytes()).hexdigest()


def test_prefix_bytes_never_change_while_leased(make_engine, observe):
    engine = make_engine(rows=6, max_batch_robots=3, streams=4)
    leases, digests = [], []
    for sequence in range(40):
        (handle,) = engine.prefill([observe(sequence)])
        leases.append(engine.kv.acquire(handle))
        digests.append(digest(engine, handle.row))
        engine.open(handle, 'Subtask:', max_tokens=20 + sequence % 7)
        engine.denoise([leases[-1]], [time.monotonic() + 1])
        for _ in range(3):
            engine.decode()
        assert [digest(engine, lease.row) for lease in leases] == digests
        if len(leases) == 3:  # one more than actions ever hold
            leases.pop(0).release()
            digests.pop(0)
        engine.kv.check_integrity()
    assert engine.kv.stats().evictions > 0


def test_denoising_stores_nothing(make_engine, observe):
    engine = make_engine()
    (handle,) = engine.prefill([observe(0)])
    arena = engine.kv.prefixes
    before, lengths = arena.kv.clone(), arena.lengths.copy()
    with engine.kv.acquire(handle) as lease:
        engine.denoise([lease], [time.monotonic() + 1])
    assert arena.kv.view(torch.uint8).equal(before.view(torch.uint8))  # bytes: NaN equals NaN
    assert (arena.lengths == lengths).all()
