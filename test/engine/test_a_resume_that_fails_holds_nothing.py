"""If any copy of a restore fails, no row, no copy and no partly restored stream remains."""

import torch
from capsule_sessions import QUESTIONS, begin, capsules_of, go_on

from embodied_kv.kv.manager import LANGUAGE


def fail_at(monkeypatch, number):
    """Let copies into tensors fail from copy `number` on; return the list of the tried copies."""
    copy, tried = torch.Tensor.copy_, []

    def risky(target, *source, **how):
        tried.append(len(tried))
        if len(tried) > number:
            raise RuntimeError('the device is lost')
        return copy(target, *source, **how)

    monkeypatch.setattr(torch.Tensor, 'copy_', risky)
    return tried


def held(engine):
    """Return what is in use, and the reasons of the streams that ended since the last call."""
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
