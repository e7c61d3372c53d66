"""Images and joint positions of one moment are paired by stamp; times in ms for readability."""

import pytest
from observation_suite import view

from embodied_kv.nodes.observation.joint_merger import JointInput, JointMerger
from embodied_kv.nodes.observation.synchronizer import Stamped, Synchronizer

MS = 1_000_000


class Joints(JointMerger):
    """A merger that never waits for further messages."""

    def __init__(self):
        super().__init__([JointInput('joints', ('hip',))], max_age=0.02)

    def awaits(self, stamp):
        return False


class Feed:
    """Two views; tolerance 20 ms, timeout 500 ms; receipt follows the stamp by `latency` (ms)."""

    def __init__(self, latency=5, required=(), tolerance=0.02):
        views = {name: view(name, required=name in required)[name] for name in 'ab'}
        self.merger, self.latency = Joints(), latency
        self.sync = Synchronizer(views, self.merger, tolerance, 0.5, max_age=1.0)

    def image(self, view, stamp, taken=None):
        received = (stamp + self.latency) / 1e3
        taken = received if taken is None else taken / 1e3
        return self.sync.image(view, Stamped(stamp * MS, taken, received, f'{view}{stamp}'))

    def joints(self, stamp, value=0.0):
        self.merger.add('joints', stamp * MS, ['hip'], [value])

    def at(self, now):
        return self.sync.newest(now / 1e3)


@pytest.fixture
def feed():
    return Feed()


def test_images_of_one_stamp_make_a_moment_once(feed):
    feed.joints(100)
    feed.image('a', 100)
    assert feed.at(106) is None and feed.sync.waits == 'no image yet from b'
    feed.image('b', 100)
    moment = feed.at(106)
    assert moment.images == ('a100', 'b100') and moment.stamp == 100 * MS
    assert feed.sync.waits == ''
    assert feed.at(107) is None


def test_only_the_newest_is_taken(feed):
    for stamp in (100, 133, 166):
        feed.joints(stamp, stamp)
        feed.image('b', stamp)
        feed.image('a', stamp)
    moment = feed.at(170)
    assert moment.images == ('a166', 'b166') and moment.state.positions[0] == 166


@pytest.mark.parametrize('apart, pairs', [(20, True), (21, False)])
def test_stamps_pair_within_the_tolerance(feed, apart, pairs):
    feed.joints(100 + apart)
    feed.image('a', 100)
    feed.image('b', 100 + apart)
    assert (feed.at(130) is not None) == pairs
    assert ('must lie within max_image_skew 20 ms (got 21 ms)' in feed.sync.waits) != pairs


def test_the_stamp_is_that_of_the_newest_image(feed):
    feed.joints(110)
    feed.image('b', 110)
    feed.image('a', 100)
    assert feed.at(120).stamp == 110 * MS


def test_joint_positions_are_those_nearest_to_the_images(feed):
    for stamp in range(80, 300, 10):
        feed.joints(stamp, stamp)
    feed.image('a', 104)
    feed.image('b', 104)
    assert feed.at(300).state.positions[0] == 100


def test_without_joint_positions_near_by_there_is_no_moment(feed):
    feed.joints(50)
    feed.image('a', 100)
    feed.image('b', 100)
    assert feed.at(110) is None
    assert feed.sync.waits == (
        'joint hip must have a sample within max_joint_state_skew 20 ms (got 50 ms before the '
        'requested time on joints); its driver is slow or silent, or its clock is wrong'
    )


def test_a_silent_view_is_missing_after_the_timeout_and_returns(feed):
    for stamp in range(0, 1000, 100):
        feed.joints(stamp)
        feed.image('a', stamp)
        if stamp <= 300:
            feed.image('b', stamp)
    assert feed.sync.missing(0.8) == ()
    assert feed.sync.missing(0.91) == ('b',)
    assert feed.at(910).images == ('a900', None)
    feed.joints(1000)
    feed.image('a', 1000)
    feed.image('b', 1000)
    assert feed.at(1006).images == ('a1000', 'b1000')
    assert feed.sync.missing(1.01) == ()


def test_without_any_view_nothing_is_given(feed):
    feed.joints(100)
    feed.image('a', 100)
    feed.image('b', 100)
    assert feed.at(2000) is None
    assert feed.sync.waits == 'no camera is alive: a, b'


def test_stamps_that_jump_back_drop_what_is_later(feed):
    feed.joints(5000)
    feed.image('a', 5000)
    feed.image('b', 5000)
    assert feed.at(5010)
    feed.latency = 5005  # the world's clock was set back, the steady one was not
    feed.joints(10)
    assert not feed.image('a', 10)
    assert feed.at(5016) is None
    assert feed.image('b', 10)  # the jump is reported once
    moment = feed.at(5017)
    assert moment.images == ('a10', 'b10') and moment.stamp == 10 * MS
    assert feed.image('a', 43) and feed.image('b', 43)


def test_an_image_that_is_a_little_late_is_passed_over(feed):
    feed.joints(70)
    feed.image('a', 100)
    assert feed.image('a', 67)
    feed.image('b', 70)
    assert feed.at(106) is None and '(got 30 ms)' in feed.sync.waits


def test_a_straggler_from_the_old_time_does_not_stop_the_new(feed):
    feed.image('a', 5000)
    feed.image('b', 5000)
    feed.latency = 5005
    feed.image('a', 10)
    feed.image('b', 5033)
    feed.joints(43)
    assert feed.at(5030) is None
    feed.image('b', 43)
    feed.image('a', 43)
    assert feed.at(5060).images == ('a43', 'b43')


def test_a_recording_that_begins_again_after_a_pause_is_noticed(feed):
    feed.joints(5000)
    feed.image('a', 5000)
    feed.image('b', 5000)
    assert feed.at(5010)
    feed.latency = 9000
    assert not feed.image('a', 10)
    feed.joints(10)
    feed.image('b', 10)
    assert feed.at(9015).images == ('a10', 'b10')


def test_restart_forgets(feed):
    feed.joints(100)
    feed.image('a', 100)
    feed.image('b', 100)
    feed.sync.restart(0.1)
    assert feed.at(110) is None and 'no image yet' in feed.sync.waits


def test_without_a_required_view_there_is_no_moment():
    feed = Feed(required='b')
    for stamp in range(0, 1000, 100):
        feed.joints(stamp)
        feed.image('a', stamp)
        if stamp <= 300:
            feed.image('b', stamp)
    assert feed.at(910) is None
    assert feed.sync.waits == 'no image from b, which is required'
    feed.image('b', 900)
    assert feed.at(911).images == ('a900', 'b900')


def test_images_that_were_taken_long_ago_make_no_moment(feed):
    feed.joints(5000)
    feed.image('a', 5000)
    feed.image('b', 5000, taken=3990)
    assert feed.at(5010) is None and feed.sync.waits == 'the image of b is 1.0 s old'


def test_an_image_is_not_mixed_with_the_picture_before():
    feed = Feed(tolerance=0.04)
    for stamp in (0, 33, 67):
        feed.joints(stamp)
        feed.image('a', stamp)
        assert feed.at(stamp + 5) is None
        feed.image('b', stamp)
        assert feed.at(stamp + 5).images == (f'a{stamp}', f'b{stamp}')


def test_a_state_that_is_on_its_way_is_waited_for(feed):
    feed.joints(67)
    feed.image('a', 67)
    feed.image('b', 67)
    feed.merger.awaits = lambda stamp: True
    assert feed.at(72) is None
    feed.merger.awaits = lambda stamp: False
    assert feed.at(75).images == ('a67', 'b67')
