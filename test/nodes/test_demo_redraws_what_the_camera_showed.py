"""A moment that was received as messages is rendered as the cameras showed it."""

import numpy as np
import pytest
from builtin_interfaces.msg import Time
from demo_play import SEED
from sensor_msgs.msg import JointState

from embodied_kv.demo.nodes.truth import TrueMoments, held_message, objects_message
from embodied_kv.demo.sim import kinematics
from embodied_kv.demo.sim.tabletop import Tabletop
from embodied_kv.demo.sim.tasks import task_scene


@pytest.fixture(scope='module')
def tables():
    """Return a live table, and one that displays received moments."""
    with Tabletop(task_scene('put'), SEED) as live, Tabletop(task_scene('put'), 0) as again:
        yield live, again


def sent(table):
    """Return the moment that the messages of the simulator describe."""
    stamp, moments = Time(sec=7), TrueMoments(task_scene('put'))
    joints = JointState(position=table.state().tolist())
    joints.header.stamp = stamp
    moments.add('joints', joints)
    moments.add('held', held_message(table, stamp))
    return moments.add('objects', objects_message(table, stamp))


def test_every_camera_shows_the_same_picture_after_a_thing_was_toppled(tables):
    live, again = tables
    thing = next(thing for thing in live.objects() if thing.shape == 'cylinder')
    x, y, _ = thing.position
    for beside in (0.07, -0.07):
        start = live.state()
        end = np.append(kinematics.top_down([(x, y + beside, 0.075)])[0], 0.0)
        for share in np.linspace(0, 1, 20):
            live.command(start + share * (end - start))
            live.step(0.05)
            sent(live).show_on(again)
            seen, drawn = live.render(), again.render()
            for name in seen:
                apart = np.abs(seen[name].astype(int) - drawn[name])
                assert (apart > 24).any(-1).mean() < 0.005, (name, beside, share)
    assert live.poses()[[t.name for t in live.objects()].index(thing.name), 3] < 0.95
