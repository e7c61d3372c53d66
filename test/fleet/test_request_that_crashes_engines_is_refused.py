"""A request whose batches crash engines is sent alone, then refused; others are served."""

from fleet_cases import ONE, TWO, answers, dispatcher, request

from embodied_kv.fleet.dispatcher import TRIES
from embodied_kv.fleet.engines import EngineState
from embodied_kv.fleet.protocol import Answer, Verdict


def robots(dispatch):
    return [waiting.robot for waiting in dispatch.batch]


def serve_but(server, poison, until=60.0):
    """Return the robots of each batch; a batch with `poison` crashes, others are answered."""
    batches, now = [], 0.0
    while server.queue and now < until:
        for dispatch in server.decide(now):
            batches.append(robots(dispatch))
            if poison in batches[-1]:
                server.lost(dispatch.engine, 'blew up')
                server.restored(dispatch.engine)
            else:
                server.done(dispatch.engine, dispatch.number, answers(dispatch), now)
        now += 1.0
    return batches


def test_suspect_is_sent_alone_and_others_are_answered():
    server = dispatcher(EngineState('two', TWO))
    for robot in ('a', 'p', 'b'):
        server.submit(request(robot), 0.0)
    batches = serve_but(server, 'p')
    assert sum('p' in batch for batch in batches) == TRIES
    assert [batch for batch in batches if 'p' in batch][1:] == [['p']] * (TRIES - 1)
    for robot in 'ab':
        assert server.submit(request(robot), 90.0).verdict is Verdict.ANSWERED


def test_refused_request_is_reported_once_with_reasons():
    server = dispatcher(EngineState('one', ONE), EngineState('two', TWO))
    server.submit(request('p'), 0.0)
    serve_but(server, 'p')
    (hopeless,) = server.hopeless()
    assert server.hopeless() == []
    assert len(hopeless.lost_batches) == TRIES and set(hopeless.lost_batches) <= {
        'one blew up',
        'two blew up',
    }
    answer = Answer('p', hopeless.task, hopeless.round, 0, 'no')
    assert server.refuse(hopeless, answer, 9.0) and not server.refuse(hopeless, answer, 9.1)
    assert server.submit(request('p'), 10.0).answer is answer
    assert server.decide(10.0) == []


def test_next_round_has_no_lost_batches():
    server = dispatcher(EngineState('one', ONE))
    server.submit(request('p'), 0.0)
    serve_but(server, 'p')
    server.submit(request('p', round=1), 1.0)
    assert server.hopeless() == []  # the older round was replaced
    (dispatch,) = server.decide(1.0)
    assert not dispatch.batch[0].lost_batches


def test_request_that_stalls_every_engine_is_refused():
    server = dispatcher(EngineState('one', ONE))
    server.submit(request('p'), 0.0)
    now = 0.0
    for _ in range(TRIES):
        (dispatch,) = server.decide(now)
        now = dispatch.overdue
        assert server.check(now) == ['one']
        server.restored('one')
    (hopeless,) = server.hopeless()
    assert hopeless.lost_batches == ('one did not answer in time',) * TRIES


def test_free_engines_do_not_wait_for_a_suspect():
    server = dispatcher(EngineState('one', ONE), EngineState('two', TWO))
    server.submit(request('p'), 0.0)
    (dispatch,) = server.decide(0.0)
    server.lost(dispatch.engine)
    server.restored(dispatch.engine)
    server.submit(request('a'), 0.1)
    assert sorted(map(robots, server.decide(0.2))) == [['a'], ['p']]
