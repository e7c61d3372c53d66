"""A session to freeze: an engine, its capsules, and what its streams say."""

from concurrent.futures import Future

from embodied_kv.capsule.registry import Registry
from embodied_kv.engine.fingerprint import fingerprint
from embodied_kv.session.engine_part import EnginePart
from embodied_kv.session.robot_session import RobotSession

QUESTIONS = ('Subtask:', 'What is in the gripper?', 'Narrate:')


def scratch(engine):
    """Buffers of the graphs that are no part of the cache."""
    kept = {memory.data_ptr() for memory in engine.kv.memory if hasattr(memory, 'data_ptr')}
    return [buffer for buffer in engine.graphs.buffers if buffer.address not in kept]


def at_once(work):
    """In place of an engine's thread."""
    future = Future()
    future.set_result(work())
    return future


def capsules_of(engine, registry=None, part=None, **more):
    registry = registry or Registry(fingerprint(engine))
    return RobotSession(part or EnginePart(engine), registry, at_once, **more)


def begin(engine, frame, steps=3, questions=QUESTIONS, **how):
    """Streams on a frame, so many decode steps old; their numbers."""
    (handle,) = engine.prefill([frame])
    streams = [engine.open(handle, q, max_tokens=12, **how).id for q in questions]
    while any(stream.is_new for stream in engine.kv.streams.live()):
        engine.decode()
    for _ in range(steps):
        engine.decode()
    return streams


def go_on(engine):
    """What each live stream still says, by number: text and all its tokens."""
    streams = {stream.id: stream for stream in engine.kv.streams.live()}
    texts = dict.fromkeys(streams, '')
    while engine.kv.streams.live():
        for delta in engine.decode():
            if delta.stream in texts:
                texts[delta.stream] += delta.text
    return {i: (texts[i], tuple(stream.tokens)) for i, stream in streams.items()}


def dirty(engine, observe):
    """Overwrites every live buffer with another session's."""
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
