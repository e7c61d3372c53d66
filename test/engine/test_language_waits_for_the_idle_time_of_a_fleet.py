"""Work next to a fleet's chunks waits for idle time of the engine, for a bounded time."""

import math
import threading

from embodied_kv.serving.fleet_server import IdleTime


def test_nobody_waits_where_there_is_slack():
    asked = []
    IdleTime(lambda now: asked.append(now) or math.inf).wait()
    assert len(asked) == 1


def test_who_waits_goes_on_when_it_opens():
    open_, went_on = [], threading.Event()
    slack = IdleTime(lambda now: 1.0 if open_ else 0.0)

    def work():
        slack.wait()
        went_on.set()

    slack.opened()  # without effect: there is no idle time yet
    thread = threading.Thread(target=work)
    thread.start()
    open_.append(True)
    slack.opened()
    thread.join(10.0)
    assert went_on.is_set()


def test_an_engine_that_is_always_busy_is_no_end_of_it():
    asked = []
    IdleTime(lambda now: asked.append(now) or 0.0).wait()
    assert asked
