"""Placement prefers the edge; the cloud serves requests that it answers sooner."""

from fleet_cases import TWO, waiting

from embodied_kv.fleet.engines import EngineState, Link, place

NEAR, FAR = Link(0.05, 1e9, 1e9), Link(5.0, 1e9, 1e9)


def cloud(link=NEAR):
    return EngineState('cloud', TWO, link)


def placed(count, *engines, now=0.0):
    queue = [waiting(str(i)) for i in range(count)]
    return {
        engine.name: [request.robot for request in batch]
        for engine, batch in place(queue, engines, now)
    }


def test_idle_edge_is_used_although_the_cloud_is_faster():
    fast = EngineState('cloud', TWO.faster(100, 'cloud'), NEAR)
    assert placed(2, EngineState('edge', TWO), fast) == {'edge': ['0', '1']}


def test_the_overflow_goes_to_a_cloud_that_is_sooner():
    assert placed(5, EngineState('edge', TWO), cloud()) == {
        'edge': ['0', '1'],
        'cloud': ['2', '3'],
    }


def test_distant_cloud_gets_no_request():
    assert placed(5, EngineState('edge', TWO), cloud(FAR)) == {'edge': ['0', '1']}


def test_cloud_gets_requests_that_would_wait_longer_at_the_edge():
    """The round trip takes 3 s, so the edge is quicker for two more batches."""
    found = placed(9, EngineState('edge', TWO), cloud(Link(1.5, 1e9, 1e9)))
    assert found == {'edge': ['0', '1'], 'cloud': ['6', '7']}


def test_transfer_time_counts():
    narrow = Link(0.05, 100.0, 1e9)  # 1,000 bytes in 10 s
    assert placed(5, EngineState('edge', TWO), cloud(narrow)) == {'edge': ['0', '1']}


def test_without_an_edge_the_cloud_takes_all():
    dead = EngineState('edge', TWO, alive=False)
    assert placed(2, cloud(FAR)) == placed(2, dead, cloud(FAR)) == {'cloud': ['0', '1']}


def test_busy_edge_takes_no_request():
    edge = EngineState('edge', TWO)
    edge.send(1, [waiting('x')], 0.0)
    assert placed(2, edge) == {}
    assert placed(2, edge, now=5.0) == {}  # no answer yet, although it is past the estimate
    edge.done(1, 5.0)
    assert placed(2, edge, now=5.0) == {'edge': ['0', '1']}


def test_two_edges_share():
    found = placed(3, EngineState('a', TWO), EngineState('b', TWO))
    assert found == {'a': ['0', '1'], 'b': ['2']}


def test_a_cloud_is_sent_its_next_batch_before_it_is_idle():
    away = cloud(Link(0.5, 1e9, 1e9))
    away.send(1, [waiting('x')], 0.0)  # computes from 0.5 to 1.5
    assert placed(1, away, now=0.9) == {}
    assert placed(1, away, now=1.01) == {'cloud': ['0']}
