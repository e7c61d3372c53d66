"""A request that batch after batch is lost with goes alone and is given up; others are served."""

from fleet_cases import ONE, TWO, answers, dispatcher, request

from embodied_kv.fleet.dispatcher import TRIES
from embodied_kv.fleet.engines import EngineState
from embodied_kv.fleet.protocol import Answer, Verdict


def robots(dispatch):
    return [waiting.robot for waiting in dispatch.batch]


def serve_but(server, poison, until=60.0):
    """Engines die of the poison, at once; the rest is answered. What each batch held."""
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


def test_it_goes_alone_and_the_others_are_answered():
    server = dispatcher(EngineState('two', TWO))
    for robot in ('a', 'p', 'b'):
        server.submit(request(robot), 0.0)
    batches = serve_but(server, 'p')
    assert sum('p' in batch for batch in batches) == TRIES
    assert [batch for batch in batches if 'p' in batch][1:] == [['p']] * (TRIES - 1)
    for robot in 'ab':
        assert server.submit(request(robot), 90.0).verdict is Verdict.ANSWERED


def test_it_is_named_once_with_what_happened_and_hears_it_again():
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


def test_the_next_round_starts_with_a_clean_sheet():
    server = dispatcher(EngineState('one', ONE))
    server.submit(request('p'), 0.0)
    serve_but(server, 'p')
    server.submit(request('p', round=1), 1.0)
    assert server.hopeless() == []  # nobody waits for the older round
    (dispatch,) = server.decide(1.0)
    assert not dispatch.batch[0].lost_batches


def test_one_that_stalls_every_engine_is_given_up_too():
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


def test_engines_that_are_free_do_not_wait_for_the_one_that_tries():
    server = dispatcher(EngineState('one', ONE), EngineState('two', TWO))
    server.submit(request('p'), 0.0)
    (dispatch,) = server.decide(0.0)
    server.lost(dispatch.engine)
    server.restored(dispatch.engine)
    server.submit(request('a'), 0.1)
    assert sorted(map(robots, server.decide(0.2))) == [['a'], ['p']]
