"""A session notifies each participant of its verbs once, on the thread that runs them."""

import dataclasses
import threading

import numpy as np
import pytest
from capsule_sessions import QUESTIONS, at_once, begin, capsules_of, go_on

from embodied_kv.capsule.reentry import Depth, SceneSummary
from embodied_kv.session.engine_part import Branch
from embodied_kv.session.participant import Participant, Participants

SCENE = SceneSummary(np.zeros(2), {'front': np.zeros((4, 4, 3), np.uint8)}, 1, '')


class Noting(Participant):
    """A participant that records its notifications."""

    def __init__(self):
        self.heard = []

    def on_instruction(self, instruction):
        self.heard.append(('instruction', instruction))

    def on_hold(self):
        self.heard.append(('hold', threading.current_thread()))

    def on_resumed(self, streams):
        tokens = {stream.id: len(stream.tokens) for stream in streams}
        self.heard.append(('resumed', tokens))

    def on_done(self, done):
        self.heard.append((done.verb, done.capsule.name, done.depth))


class Seeing(Participant):
    """A participant that makes frames. scene: the present one."""

    makes_frames = True

    def __init__(self, scene):
        self.present = scene

    def scene(self):
        return self.present


@pytest.fixture
def session(make_engine, observe):
    engine = make_engine()
    begin(engine, observe(1), steps=3)
    return capsules_of(engine)


@pytest.fixture
def noting(session):
    participant = Noting()
    session.participants.join(participant)
    return participant


def test_a_restore_hands_over_its_streams_before_they_move_and_reports_its_depth(session, noting):
    session.snapshot('home')
    before = {stream.id: len(stream.tokens) for stream in session.engine_part.streams()}
    resumed = session.rollback('home')
    snapshot, (kind, tokens), done = noting.heard
    assert snapshot == ('snapshot', 'home', None)
    assert kind == 'resumed' and tuple(tokens) == resumed.streams
    assert not before.keys() & tokens.keys() and [*tokens.values()] == [*before.values()]
    assert done == ('rollback', 'home', Depth.PLANNER)


def test_a_fork_hands_over_the_streams_of_all_branches_and_no_other(make_engine, observe):
    engine = make_engine(streams=9)
    begin(engine, observe(1))
    session, noting = capsules_of(engine), Noting()
    session.participants.join(noting)
    session.snapshot('home')
    grown, _ = session.fork('home', [Branch(), Branch()])
    _, (_, tokens), done = noting.heard
    assert [*tokens] == [stream.id for streams in grown for stream in streams]
    assert len(tokens) == 2 * len(QUESTIONS) and done == ('fork', 'home', Depth.PLANNER)
    assert tokens.keys() < go_on(engine).keys()


def test_a_restore_that_resumes_nothing_holds_the_arm_on_the_engine_thread(session, noting):
    other, session._call = [], lambda work: on_a_thread(work, other)
    session.snapshot('home')
    resumed = session.restore('home', None)
    assert resumed.decision.depth is Depth.HOLD
    assert noting.heard[1:] == [('hold', other[-1]), ('restore', 'home', Depth.HOLD)]


def on_a_thread(work, threads):
    """Run work on a thread in place of the engine thread, wait for it, and return its future."""
    futures = []
    threads.append(threading.Thread(target=lambda: futures.append(at_once(work))))
    threads[-1].start()
    threads[-1].join(60)
    return futures[0]


def test_a_part_that_fails_after_the_engine_leaves_no_stream_without_an_owner(session, noting):
    class Failing:
        name, depth = 'failing', 'planner'

        def buffers(self):
            return ()

        def freeze(self):
            return session.engine_part.freeze()

        def check_resumable(self, frozen):
            pass

        def resume(self, frozen):
            raise RuntimeError('no')

    session.register(Failing())
    session.snapshot('home')
    with pytest.raises(RuntimeError, match='no'):
        session.rollback('home')
    owned = {stream.id for stream in session.engine_part.streams()}
    assert owned and noting.heard[1][0] == 'resumed' and noting.heard[1][1].keys() == owned


def test_a_participant_is_notified_once_however_often_it_joins_and_never_after_it_left():
    participants, one, other = Participants(), Noting(), Noting()
    for each in (one, other, one):
        participants.join(each)
    participants.on_instruction('reach')
    participants.leave(one)
    participants.leave(one)
    participants.on_instruction('')
    assert one.heard == [('instruction', 'reach')]
    assert other.heard == [('instruction', 'reach'), ('instruction', '')]


def test_the_scene_is_that_of_the_participant_that_has_one():
    participants, seeing = Participants(), Seeing(None)
    participants.join(Noting())
    assert not participants.makes_frames and participants.scene() is None
    participants.join(seeing)
    assert participants.makes_frames and participants.scene() is None
    seeing.present = SCENE
    participants.join(Seeing(dataclasses.replace(SCENE, stamp=2)))
    assert participants.scene() is SCENE
    participants.leave(seeing)
    assert participants.scene().stamp == 2
