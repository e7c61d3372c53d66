"""FairDeadline serves occasional requests before floods; a deadline gains one request per 2 s."""

import heapq
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.control.execution_horizon import Static
from embodied_kv.fleet.dispatcher import Dispatcher
from embodied_kv.fleet.engines import EngineState
from embodied_kv.fleet.profile import Profile
from embodied_kv.fleet.protocol import Answer, Request
from embodied_kv.fleet.schedulers import FairDeadline, Usage, Waiting

MOMENTS = st.floats(0, 100)
SECONDS = 0.04  # s of the engine per request
END = 20.0  # s of simulated time
MEMORY = 2.0  # s; time constant in which usage decays
MODEST = 0.2  # s between two requests of a client at 5 Hz


def waiting(arrived, deadline=math.inf, robot='r'):
    return Waiting(robot, 't', 0, arrived, arrived, 0.0, 0.0, 1.0, deadline=deadline)


def served(clients, scheduler=None, size=1, comes_again='', came=None):
    """Return, by client, how long each of its requests took, s.

    A client sends a request once per period, or as soon as it is answered if that is later. The
    engine takes SECONDS for a batch of `size`.

    clients: name -> (period, time limit of each request), s. comes_again: clients whose names
    begin with this use a new name, and so a new account, for each request. came: name -> start,
    s, of clients that start later than the others.
    """
    sizes = (1, size) if size > 1 else (1,)
    seconds = tuple(SECONDS * n / size for n in sizes)
    dispatcher = Dispatcher(
        scheduler or FairDeadline(), [EngineState('e', Profile('e', sizes, seconds, 1))]
    )
    events, took = [], {name: [] for name in clients}
    asked, rounds = {}, dict.fromkeys(clients, 0)
    for number, name in enumerate(clients):
        heapq.heappush(events, ((came or {}).get(name, number * 1e-3), name, None))
    while events[0][0] < END:
        now, name, dispatch = heapq.heappop(events)
        if dispatch is None:
            asked[name], within = now, clients[name][1]
            again = comes_again and name.startswith(comes_again)
            robot = f'{name}/{rounds[name]}' if again else name
            request = Request(robot, 't', rounds[name], now, Static(1), 1, within=within)
            dispatcher.submit(request, now)
        else:
            answers = [Answer(w.robot, w.task, w.round, 1) for w in dispatch.batch]
            for answer in dispatcher.done('e', dispatch.number, answers, now):
                robot = answer.robot.partition('/')[0]
                took[robot].append(now - asked[robot])
                rounds[robot] += 1
                again = max(now + 1e-6, asked[robot] + clients[robot][0])
                heapq.heappush(events, (again, robot, None))
        for sent in dispatcher.decide(now):
            engine = dispatcher.engines['e']
            heapq.heappush(events, (engine.free_at, '', sent))
    return took


@pytest.mark.parametrize('within', [0.001, math.inf], ids=['hasty floods', 'patient floods'])
def test_occasional_requests_are_served_before_a_flood(within):
    floods = {f'flood {n}': (0.0, within) for n in range(3)}
    took = served({'modest': (MODEST, math.inf)} | floods)
    assert len(took['modest']) == pytest.approx(END / MODEST, abs=2)
    assert max(took['modest'][5:]) <= 2 * SECONDS + 1e-3  # the batch at the engine, and its own


def test_reconnecting_clients_gain_no_turn():
    floods = {f'flood {n}': (0.0, 0.001) for n in range(3)}
    took = served({'modest': (MODEST, math.inf)} | floods, comes_again='flood')
    assert len(took['modest']) == pytest.approx(END / MODEST, abs=2)
    assert max(took['modest'][5:]) <= 2 * SECONDS + 1e-3


@pytest.mark.parametrize('within', [0.001, 0.2, math.inf])
def test_new_account_waits_about_one_turn(within):
    clients = {f'flood {n}': (0.0, within) for n in range(20)} | {'new': (END, math.inf)}
    took = served(clients, came={'new': END / 2})
    assert took['new'][0] <= 1.1 * len(clients) * SECONDS


def test_reconnecting_with_a_deadline_gains_no_turn():
    clients = {f'flood {n}': (0.0, 0.001) for n in range(8)} | {'patient': (0.0, math.inf)}
    took = served(clients, comes_again='flood')
    most = max(len(took[name]) for name in clients)
    assert most - len(took['patient']) <= 2


@pytest.mark.parametrize('floods', [1, 8, 20])
def test_a_deadline_is_worth_one_request_in_a_while(floods):
    clients = {f'flood {n}': (0.0, 0.001) for n in range(floods)} | {'patient': (0.0, math.inf)}
    took = served(clients)
    others = max(len(took[name]) for name in clients)
    assert others - len(took['patient']) <= END / MEMORY + 2


def test_fairness_holds_with_batches():
    floods = {f'flood {n}': (0.0, 0.001) for n in range(8)}
    took = served({'modest': (MODEST, math.inf)} | floods, size=4)
    assert max(took['modest'][5:]) <= 2 * SECONDS + 1e-3


def test_with_equal_usage_the_earlier_deadline_goes_first():
    scheduler = FairDeadline()
    late, soon, none = waiting(0.0, 0.9, 'a'), waiting(0.1, 0.5, 'b'), waiting(0.2, robot='c')
    for _ in range(2):
        assert scheduler.order([none, late, soon], 0.3) == [soon, late, none]
        scheduler.sent([none, late, soon], 0.3)


def test_robots_of_one_account_share_its_usage():
    scheduler = FairDeadline(account=lambda robot: robot[0])
    known, other = waiting(0.0, robot='a1'), waiting(0.2, robot='b1')
    scheduler.order([known, other], 0.2)
    scheduler.sent([known], 0.2)
    renamed = waiting(0.3, 0.4, 'a2')
    assert scheduler.order([renamed, other], 0.3) == [other, renamed]


def test_usage_decays():
    usage = Usage(memory=2.0)
    for tenth in range(200):
        usage.add('a', 1.0, tenth / 10)
    assert usage.of('a', 20.0) == pytest.approx(20.0, rel=0.05)  # 10 per second, over 2 s
    assert usage.of('a', 22.0) == pytest.approx(20.0 / math.e, rel=0.05)
    assert usage.enter(['new'], 22.0)['new'] == usage.of('a', 22.0)
    assert usage.enter(['b'], 90.0) == {'b': 0.0}  # all other accounts were forgotten


ONE = st.tuples(MOMENTS, st.floats(-1e9, 1e9) | st.just(math.inf), st.sampled_from('abc'))


@given(st.lists(ONE, min_size=1), st.lists(st.sampled_from('abc')))
def test_no_request_is_overtaken_by_a_much_later_one(drawn, had):
    scheduler = FairDeadline(patience=1.0, longest=5.0)
    for robot in had:
        scheduler.sent([waiting(0.0, robot=robot)], 99.0)
    order = scheduler.order([waiting(*one) for one in drawn], 100.0)
    assert len(order) == len(drawn)
    for place, first in enumerate(order):
        for later in order[place + 1 :]:
            assert first.arrived <= later.arrived + scheduler.longest


def test_patience_above_longest_is_refused():
    with pytest.raises(ValueError, match='patience must be from 0 to longest = 10.0 .got 19.0'):
        FairDeadline(patience=19.0)
