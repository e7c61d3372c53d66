"""Helpers for tests of capsules: the session of an engine, its streams, and their tokens."""

from concurrent.futures import Future

from embodied_kv.capsule.registry import Registry
from embodied_kv.engine.fingerprint import fingerprint
from embodied_kv.session.engine_part import EnginePart
from embodied_kv.session.robot_session import RobotSession

QUESTIONS = ('Subtask:', 'What is in the gripper?', 'Narrate:')


def scratch(engine):
    """Return the buffers of the graphs that are not part of the KV cache."""
    kept = {memory.data_ptr() for memory in engine.kv.memory if hasattr(memory, 'data_ptr')}
    return [buffer for buffer in engine.graphs.buffers if buffer.address not in kept]


def at_once(work):
    """Run work at once, in place of the engine thread, and return a future of its result."""
    future = Future()
    future.set_result(work())
    return future


def capsules_of(engine, registry=None, part=None, **more):
    registry = registry or Registry(fingerprint(engine))
    return RobotSession(part or EnginePart(engine), registry, at_once, **more)


def begin(engine, frame, steps=3, questions=QUESTIONS, **how):
    """Begin a stream per question on a frame, decode `steps` steps, and return their ids."""
    (handle,) = engine.prefill([frame])
    streams = [engine.open(handle, q, max_tokens=12, **how).id for q in questions]
    while any(stream.is_new for stream in engine.kv.streams.live()):
        engine.decode()
    for _ in range(steps):
        engine.decode()
    return streams


def go_on(engine):
    """Decode all live streams to their ends, and return their new text and all tokens, by id."""
    streams = {stream.id: stream for stream in engine.kv.streams.live()}
    texts = dict.fromkeys(streams, '')
    while engine.kv.streams.live():
        for delta in engine.decode():
            if delta.stream in texts:
                texts[delta.stream] += delta.text
    return {i: (texts[i], tuple(stream.tokens)) for i, stream in streams.items()}


def dirty(engine, observe):
    """End all streams, and overwrite every live buffer with data of another session."""
    for stream in engine.kv.streams.live():
        engine.kv.streams.release(stream, 'cancelled')
    engine.deltas()
    for number in range(900, 908):
        begin(engine, observe(number, robot='other', in_time=60.0), questions=('What is it?',))
    for stream in engine.kv.streams.live():
        engine.kv.streams.release(stream, 'cancelled')
    engine.deltas()
    engine.kv.prefixes.k.fill_(7)
    engine.kv.prefixes.v.fill_(-7)
    engine.kv.decode_kv.k.fill_(5)
    engine.kv.decode_kv.v.fill_(-5)
    engine.kv.compressed.k.fill_(3)
    engine.kv.compressed.v.fill_(-3)
