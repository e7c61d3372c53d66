"""Actions equal those of the engine: bit for bit alone, to 1e-5 in a larger batch."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from server_cases import PATIENCE, REQUESTS, busy, libero, running_server, until

from embodied_kv.serving.batch import serve
from embodied_kv.serving.websocket.calls import Call, observation
from embodied_kv.serving.websocket.observation_parser import ObservationParser


def own(opened, request, session, number):
    """Return the actions of the engine for a request, without the server."""
    seen = ObservationParser(opened.robot.contract).read(request)
    frame = observation(opened.engine, seen, Call(), session, number, 0.0, '')
    work = opened.device.call(lambda: serve(opened.engine, [replace(frame)], math.inf))
    (chunk,) = work.result(PATIENCE)
    return chunk.values


@pytest.mark.parametrize('robot', REQUESTS)
def test_a_client_alone_gets_the_engines_own_bits(robot):
    with running_server(robot) as opened, opened.client() as client:
        for n in range(3):
            request = REQUESTS[robot](n)
            actions = client.infer(request | {'session_id': 'me'})['actions']
            expected = own(opened, request, 'me', n)[: len(actions)]
            np.testing.assert_array_equal(actions, expected)


def test_batched_clients_get_the_same_actions_as_alone():
    with running_server() as opened, ThreadPoolExecutor(5) as threads:
        clients = [opened.client() for _ in range(5)]
        with busy(opened):
            asked = [
                threads.submit(client.infer, libero(n) | {'session_id': f's{n}'})
                for n, client in enumerate(clients)
            ]
            # The first request was sent to the engine; the others wait and form a batch.
            until(lambda: opened.sessions.values()['waiting'] == 4)
        found = [one.result(PATIENCE)['actions'] for one in asked]
        values = opened.sessions.values()
        assert (values['batches'], values['served']) == (2, 5)
        for n, actions in enumerate(found):
            np.testing.assert_allclose(actions, own(opened, libero(n), f's{n}', 0), atol=1e-5)
        for client in clients:
            client.socket.close()
