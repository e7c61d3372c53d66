"""A frame reaches the action node first, then every other subscribed node of the process."""

import threading

import pytest

from embodied_kv.msg import KvHandle as KvHandleMsg
from embodied_kv.nodes.action import Action
from embodied_kv.nodes.common import conversions, qos
from embodied_kv.nodes.common.engine_host import EngineHost
from embodied_kv.nodes.language import Language
from embodied_kv.nodes.perception import Perception
from embodied_kv.serving.engine_runner import Feed


@pytest.fixture
def feed():
    return Feed('a reader of frames')


def test_listeners_get_frames_in_the_order_in_which_they_came(feed):
    heard = []
    feed.listen(lambda handle: heard.append(('a', handle)))
    feed.listen(lambda handle: heard.append(('b', handle)))
    feed.give(1)
    feed.give(2)
    assert heard == [('a', 1), ('b', 1), ('a', 2), ('b', 2)]


def test_the_action_is_called_before_listeners_that_came_earlier_and_each_once(feed):
    heard = []

    def action(handle):
        heard.append('action')

    feed.listen(lambda handle: heard.append('language'))
    feed.listen(action, first=True)
    feed.listen(action, first=True)
    feed.give(1)
    assert heard == ['action', 'language']


def test_language_reads_the_newest_of_the_frames_that_wait(robot, monkeypatch):
    perception, language = robot.up(Perception, Language, prompt_interval_frames=0)
    robot.more(robot.handles, 2)
    read, feed = [], perception.host.frames(robot.namespace)
    monkeypatch.setattr(perception, 'active', False)  # no further frame is published
    newest = perception.host.engine.kv.frames.current(robot.namespace)
    monkeypatch.setattr(language, '_is_due', lambda: read.append(1))
    for _ in range(5):  # the test runs on the node's thread, so nothing is read yet
        perception.host.device.call(lambda: feed.give(newest)).result(60)
    robot.spin(0.5)
    assert len(read) == 1 and not language.warning_counts


def test_a_listener_that_fails_costs_no_other_its_frame(feed, caplog):
    heard = []

    def broken(handle):
        raise RuntimeError('no')

    feed.listen(broken)
    feed.listen(heard.append)
    feed.give(1)
    assert heard == [1] and 'a reader of frames failed' in caplog.text


def test_a_listener_that_left_is_not_called_again_and_none_is_in_progress(feed):
    entered, gate, order = threading.Event(), threading.Event(), []

    def slow(handle):
        entered.set()
        gate.wait(60)
        order.append('read')

    def leave():
        feed.unlisten(slow)
        order.append('left')

    feed.listen(slow)
    device = threading.Thread(target=feed.give, args=(1,))
    node = threading.Thread(target=leave)
    device.start()
    entered.wait(60)
    node.start()
    gate.set()
    device.join()
    node.join()
    feed.give(2)
    assert order == ['read', 'left']


def test_the_action_of_a_frame_is_submitted_before_the_device_thread_goes_on(robot, monkeypatch):
    perception, action = robot.up(Perception, Action)
    device, threads = perception.host.device, []
    denoise = device.denoise

    def submitted(*arguments):
        threads.append(threading.current_thread())
        return denoise(*arguments)

    monkeypatch.setattr(device, 'denoise', submitted)
    robot.more(robot.chunks, 3)
    assert set(threads) == {device}


def test_a_node_that_subscribes_to_the_topic_acquires_the_same_row(robot):
    robot.up(Perception, Action, Language, prompt_interval_frames=0)
    kv, rows = EngineHost._shared.engine.kv, []

    def read(message):
        with kv.acquire(conversions.handle(message, robot.namespace)) as lease:
            rows.append((message.row, lease.row, float(kv.prefixes.row(lease.row)[0].abs().sum())))

    robot.node.create_subscription(KvHandleMsg, 'kv_handle', read, qos.HANDLE)
    robot.until(lambda: len(rows) >= 3)
    assert all(message == lease and total > 0 for message, lease, total in rows)


@pytest.mark.parametrize('kind', [Action, Language])
def test_a_node_that_is_not_active_reads_no_frame(robot, kind):
    _, reader = robot.up(Perception, kind)
    robot.more(robot.handles, 2)
    assert reader.trigger_deactivate().name == 'SUCCESS'
    assert not reader.host.frames(robot.namespace)._listeners
    robot.more(robot.handles, 2)
    assert reader.trigger_activate().name == 'SUCCESS'
    robot.more(robot.chunks if kind is Action else robot.texts, 1)
