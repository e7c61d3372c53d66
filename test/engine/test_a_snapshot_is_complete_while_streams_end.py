"""A stream that another thread ends during a snapshot is complete in the capsule."""

from capsule_sessions import begin, capsules_of, go_on

from embodied_kv.capsule import frozen_kv


def test_a_stream_that_ends_meanwhile_is_kept_whole(make_engine, observe, monkeypatch):
    engine = make_engine()
    begin(engine, observe(1))
    capsules = capsules_of(engine)
    capsules.snapshot('before')
    copies = frozen_kv.copied

    def end_all_and_copy(*arguments):
        for stream in engine.kv.streams.live():
            engine.kv.streams.release(stream, 'cancelled')
        return copies(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(frozen_kv, 'copied', end_all_and_copy)
        capsules.snapshot('meanwhile')
    assert engine.kv.streams.live() == []
    engine.kv.check_integrity()
    capsules.rollback('before')
    expected = list(go_on(engine).values())
    capsules.rollback('meanwhile')
    assert list(go_on(engine).values()) == expected
