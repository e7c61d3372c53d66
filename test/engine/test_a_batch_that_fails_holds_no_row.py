"""A batch that fails at any point holds no row and no lease afterwards."""

from operator import attrgetter

import pytest

from embodied_kv.kv.rows import OutOfRowsError
from embodied_kv.serving.batch import serve


def held(engine):
    """Return the number of rows that are neither free nor a newest frame, and of leases."""
    engine.kv.check_integrity()
    current = {
        h.row for h in map(engine.kv.frames.current, ('', 'r0', 'r1', 'r2')) if h is not None
    }
    stats = engine.kv.stats()
    return stats.rows - stats.rows_free - len(current), stats.leases


def batch(observe, count, **options):
    return [observe(n, robot=f'r{n}', **options) for n in range(count)]


def test_a_batch_for_which_there_are_too_few_rows(make_engine, observe):
    engine = make_engine(max_batch_robots=3, rows=6)
    (handle,) = engine.prefill([observe(0)])
    others = [engine.kv.reserve(0.0) for _ in range(3)]
    with engine.kv.acquire(handle):
        for _ in range(3):
            with pytest.raises(OutOfRowsError, match='3 wanted'):
                engine.prefill(batch(observe, 3))
    for row in others:
        engine.kv.frames.abandon(row)
    assert held(engine) == (0, 0)
    assert len(engine.prefill(batch(observe, 3))) == 3


@pytest.mark.parametrize(
    'part', ['_prefiller.run', 'compression.compress_frame', 'kv.frames.commit']
)
def test_a_prefill_that_fails_half_way(make_engine, observe, monkeypatch, part):
    engine = make_engine(max_batch_robots=3)
    owner, name = part.rsplit('.', 1)
    monkeypatch.setattr(attrgetter(owner)(engine), name, lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        engine.prefill(batch(observe, 3))
    assert held(engine) == (0, 0)
    monkeypatch.undo()
    assert len(serve(engine, batch(observe, 3), deadline=1e9)) == 3


def test_a_copy_that_cannot_be_gathered(make_engine, observe, monkeypatch):
    engine = make_engine(action_keep_ratio=0.3)
    monkeypatch.setattr(engine.kv.compressed, 'gather', lambda *_: 1 / 0)
    assert len(engine.prefill([observe(0)])) == 1  # the frame is usable without the copy
    assert engine.kv.copies.scoring_failures == 1 and held(engine) == (0, 0)
    assert engine.kv.compressed.tokens_free == engine.kv.compressed.tokens


def test_leases_whose_denoising_fails(make_engine, observe, monkeypatch):
    engine = make_engine()
    monkeypatch.setattr(engine._denoiser, 'run', lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        with engine.kv.frames.leases(engine.prefill([observe(0)])) as leases:
            engine.denoise(leases, [0.0])
    assert held(engine) == (0, 0)
