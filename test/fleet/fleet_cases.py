"""Small fleets for the tests of this folder."""

from functools import cache

from benchmarks.fleet.simulate import Simulation
from benchmarks.fleet.workload import Job
from embodied_kv.control.execution_horizon import Static
from embodied_kv.fleet.dispatcher import Dispatcher
from embodied_kv.fleet.engines import EngineState
from embodied_kv.fleet.profile import Profile
from embodied_kv.fleet.protocol import Answer, LastExecution, Request
from embodied_kv.fleet.schedulers import Fifo, Waiting, skip

ONE = Profile('one', (1,), (1.0,), 1400)  # one request per second
TWO = Profile('two', (1, 2), (1.0, 1.2), 1400)


def waiting(robot='r', *, arrived=0.0, started=0.0, waited=0.0, generation=0.0, execution=1.0):
    return Waiting(robot, 't', 0, arrived, started, waited, generation, execution, 1000)


def request(robot='r', round=0, *, task='t', stamp=0.0, execution=None, **other):
    told = dict(execution_horizon=Static(5), observation_bytes=1000) | other
    return Request(robot, task, round, stamp, execution=execution, **told)


def ran(round, start, end, remaining=0):
    return LastExecution(round, start, end, remaining)


def dispatcher(*engines, scheduler=None):
    """Return a dispatcher; by default with one engine, whose batches hold one request."""
    return Dispatcher(scheduler or Fifo(), engines or [EngineState('one', ONE)])


def pick(policy, waiting, now, room):
    """Return the batch of one decision; count the decision for requests that are left out."""
    batch = policy.order(waiting, now)[:room]
    skip(waiting, batch)
    return batch


def answers(dispatch, chunk=None):
    return [Answer(r.robot, r.task, r.round, 5, chunk) for r in dispatch.batch]


def job(execution, rounds):
    """Return a task of so many rounds that each take `execution` seconds."""
    return Job((1,) * rounds, float(execution), 1, 1)


def synchronous(tasks, scheduler):
    """Simulate synchronous tasks (s of execution, rounds) on an engine that generates for 1 s."""
    jobs = [job(*task) for task in tasks]
    return Simulation(jobs, scheduler, [EngineState('one', ONE)], lead=0.0).arrive(
        [0.0] * len(jobs)
    )


def least_wait(tasks):
    """Return the minimum total queueing (s) of such tasks, by trying every schedule."""

    @cache
    def best(now, ready):
        left = [i for i, (_, rounds) in enumerate(ready) if rounds]
        if not left:
            return 0.0
        now = max(now, min(ready[i][0] for i in left))
        found = []
        for i in left:
            begin = max(now, ready[i][0])  # the engine may wait for a task that is not ready
            after = list(ready)
            after[i] = (begin + 1 + tasks[i][0], ready[i][1] - 1)
            found.append(begin - ready[i][0] + best(begin + 1, tuple(after)))
        return min(found)

    return best(0.0, tuple((0.0, rounds) for _, rounds in tasks))
