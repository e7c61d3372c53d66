"""Whichever copy of a restore fails: no row, no copy and no half-restored stream is left."""

import torch
from capsule_sessions import QUESTIONS, begin, capsules_of, go_on

from embodied_kv.kv.manager import LANGUAGE


def fail_at(monkeypatch, number):
    """Copies into tensors fail from that one on; returns the numbers of those that were tried."""
    copy, tried = torch.Tensor.copy_, []

    def risky(target, *source, **how):
        tried.append(len(tried))
        if len(tried) > number:
            raise RuntimeError('the device is lost')
        return copy(target, *source, **how)

    monkeypatch.setattr(torch.Tensor, 'copy_', risky)
    return tried


def held(engine):
    """What is in use, once those that ended have said so."""
    ended = [delta.reason for delta in engine.deltas()]
    stats = engine.kv.stats()
    return stats.rows_free, stats.leases, stats.streams, stats.bytes_used, ended


def test_a_restore_that_fails_changes_nothing(make_engine, observe, monkeypatch):
    engine = make_engine()
    begin(engine, observe(1), questions=QUESTIONS[:2])
    engine.compression.set_keep_ratio(LANGUAGE, 0.3)
    begin(engine, observe(2), questions=QUESTIONS[1:2])
    capsules = capsules_of(engine)
    capsules.snapshot('here')
    expected = list(go_on(engine).values())
    before, failures = held(engine), 0
    for number in range(1000):
        with monkeypatch.context() as patched:
            fail_at(patched, number)
            try:
                capsules.rollback('here')
                break
            except RuntimeError:
                failures += 1
        engine.kv.check_integrity()
        *now, reasons = held(engine)
        assert (*now, []) == before and {*reasons} <= {'error'}, f'copy {number}'
    assert failures >= 8  # K and V of two rows and three streams, at least
    assert list(go_on(engine).values()) == expected
