"""Restore, then decode, equals an uninterrupted run, in every token and every byte of state."""

import pytest
import torch
from capsule_sessions import begin, capsules_of, dirty, go_on

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.reentry import Decision, Depth


@pytest.mark.parametrize('steps', [0, 1, 5])
@pytest.mark.parametrize('temperature', [0.0, 1.0])
def test_restored_streams_say_what_they_would_have_said(make_engine, observe, steps, temperature):
    engine = make_engine()
    begin(engine, observe(1), steps, temperature=temperature, seed=3)
    capsules = capsules_of(engine)
    capsules.snapshot('here')
    expected = go_on(engine)
    dirty(engine, observe)
    resumed = capsules.rollback('here')
    assert list(go_on(engine).values()) == list(expected.values())
    assert len(resumed.streams) == len(expected)
    engine.kv.check_integrity()


def test_a_snapshot_of_what_was_restored_is_the_same_bytes(make_engine, observe):
    engine = make_engine()
    begin(engine, observe(1))
    capsules = capsules_of(engine)
    first, _ = capsules.snapshot('first')
    dirty(engine, observe)
    capsules.rollback('first')
    second, _ = capsules.snapshot('second')
    streams = [name for name in first.tensors if '/stream/' in name]
    assert streams
    for name in streams:
        assert torch.equal(first.tensors[name], second.tensors[name]), name
    assert first.facts['session']['streams'] == second.facts['session']['streams']


def test_streams_over_several_frames_keep_theirs(make_engine, observe):
    engine = make_engine()
    for number in (1, 2, 3):
        begin(engine, observe(number), steps=1, questions=('Subtask:', 'Narrate:'))
    capsules = capsules_of(engine)
    capsule, _ = capsules.snapshot('three-frames')
    assert len(capsule.facts['session']['rows']) == 3
    expected = go_on(engine)
    dirty(engine, observe)
    capsules.rollback('three-frames')
    assert list(go_on(engine).values()) == list(expected.values())


def test_a_stream_whose_question_was_not_read_yet_is_asked_after_the_restore(make_engine, observe):
    engine = make_engine()
    (handle,) = engine.prefill([observe(1)])
    engine.open(handle, 'What is it?', max_tokens=5)
    capsules = capsules_of(engine)
    capsules.snapshot('unread')
    expected = go_on(engine)
    dirty(engine, observe)
    capsules.rollback('unread')
    assert list(go_on(engine).values()) == list(expected.values())


def test_text_goes_on_in_the_middle_of_a_character(make_engine, observe):
    engine = make_engine()
    begin(engine, observe(1), steps=4)
    capsules = capsules_of(engine)
    for number in range(3):  # tokens are bytes, so one of these snapshots is within a character
        capsules.snapshot(f'boundary-{number}')
        engine.decode()
    for number in range(3):
        capsules.rollback(f'boundary-{number}')
        texts = [text for text, _ in go_on(engine).values()]
        capsules.rollback(f'boundary-{number}')
        assert [text for text, _ in go_on(engine).values()] == texts


def test_present_streams_of_the_robot_end_and_those_of_others_live(make_engine, observe):
    engine = make_engine()
    begin(engine, observe(1))
    capsules = capsules_of(engine)
    capsules.snapshot('here')
    (other,) = begin(engine, observe(2, robot='other'), questions=('Subtask:',))
    old = {stream.id for stream in capsules.engine_part.streams()}
    capsules.rollback('here')
    assert engine.kv.streams.get(other).reason == ''
    assert not old & {stream.id for stream in capsules.engine_part.streams()}
    ended = {delta.stream: delta.reason for delta in engine.deltas()}
    assert ended == dict.fromkeys(old, 'replaced')


def test_restored_rows_have_new_handles_old_stamps_and_no_deadline(make_engine, observe):
    engine = make_engine()
    begin(engine, observe(5))
    capsules = capsules_of(engine)
    capsules.snapshot('here')
    before = engine.kv.frames.current('')
    capsules.rollback('here')
    (handle,) = {stream.lease.handle for stream in capsules.engine_part.streams()}
    assert (handle.process_id, handle.stamp, handle.sequence) == (
        before.process_id,
        before.stamp,
        5,
    )
    assert (handle.row, handle.generation) != (before.row, before.generation)
    assert handle.deadline == -float('inf')
    assert engine.kv.frames.current('') == before  # actions read the present frame


def test_too_many_streams_are_refused_and_nothing_changes(make_engine, observe):
    engine = make_engine()
    begin(engine, observe(1))
    capsules = capsules_of(engine)
    capsules.snapshot('here')
    live = {stream.id for stream in engine.kv.streams.live()}
    engine.kv.set_limits(streams=2)
    left = {stream.id for stream in engine.kv.streams.live()}
    with pytest.raises(CapsuleError, match='at most 2 streams .got 3.'):
        capsules.rollback('here')
    assert {stream.id for stream in engine.kv.streams.live()} == left < live


def test_a_hold_resumes_nothing(make_engine, observe):
    engine = make_engine()
    begin(engine, observe(1))
    capsules = capsules_of(engine)
    capsules.snapshot('here')
    live = [stream.id for stream in engine.kv.streams.live()]
    resumed = capsules.restore('here', None)
    assert resumed.decision == Decision(
        Depth.HOLD, 'there is no recent observation: the robot holds'
    )
    assert resumed.streams == ()
    assert [stream.id for stream in engine.kv.streams.live()] == live
