"""`kv/*` beside a fleet: what all its robots hold, and what they are to give up."""

import pytest
from fleet_suite import Fleets
from test_fleet_robots_speak import ask, end, quiet, serve, stays

from embodied_kv.srv import Evict, KvStats, SetLimits


@pytest.fixture
def fleet(robots, tmp_path):
    return Fleets(robots, tmp_path)


def call(fleet, kind, name, **fields):
    """In the fleet's own namespace."""
    return fleet.call(fleet.first, kind, name, **fields)


def test_its_stats_sum_to_what_the_pools_of_all_robots_hold(fleet):
    node, a, b = quiet(fleet, memory=True)
    stays(node)
    ask(fleet, a), ask(fleet, b)
    plane = node.host.plane
    response = call(fleet, KvStats, 'kv/stats')
    assert response.success and response.streams == 2
    assert response.bytes == sum(pool.bytes for pool in plane.stats())
    assert response.bytes_used == sum(pool.bytes_used for pool in plane.stats()) > 0
    for name in {pool.name for pool in plane.pools}:
        assert response.message.count(f' {name} ') == 1, response.message


def test_streams_above_a_bound_end_and_each_robot_has_a_smaller_share(fleet):
    node, a, b = quiet(fleet)
    stays(node)
    asked = [(robot, ask(fleet, robot).stream) for robot in (a, a, b, b)]
    each = node._shares.each
    response = call(fleet, SetLimits, 'kv/set_limits', streams=2)
    assert response.success and response.streams == 2, response.message
    live = {stream.id for stream in node.host.engine.kv.streams.live()}
    ended = [(robot, stream) for robot, stream in asked if stream not in live]
    assert len(ended) == 2 and [end(fleet, *one)[1] for one in ended] == ['evicted'] * 2
    assert node._shares.each == 1 < each


def test_evicting_ends_a_stream_and_robots_go_on(fleet):
    node, a, b = quiet(fleet)
    stays(node)
    stream, other = ask(fleet, a).stream, ask(fleet, b).stream
    assert call(fleet, Evict, 'kv/evict', stream=other).ended == 1
    assert end(fleet, b, other) == ('', 'evicted')
    assert [s.id for s in node.host.engine.kv.streams.live()] == [stream]
    serve(fleet, a, b, round=1)
    node.host.engine.kv.check_integrity()
