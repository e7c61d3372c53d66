"""One that sends no prompt, as openpi's aloha_sim: it is served by the server's own, or told."""

import re

import numpy as np
import pytest
from door_cases import OldClient, aloha, door, libero

from embodied_kv.serving.__main__ import main

SMALL = '--engine.robots 1 --engine.rows 6 --engine.reserved_rows 2 --engine.streams 1'.split()


def mute(request):
    return {key: value for key, value in request.items() if key != 'prompt'}


def test_it_is_told_with_what_to_start_the_server():
    with door('aloha') as opened, opened.client() as client:
        with pytest.raises(RuntimeError, match=r'--prompt "…", of the node -p prompt:="…"'):
            client.infer(mute(aloha()))


def test_the_servers_own_prompt_is_what_it_is_to_do():
    with door('aloha', prompt='transfer the cube') as opened:
        with opened.client() as client:
            own = client.infer(mute(aloha()) | {'session_id': 'arm'})['actions']
            client.infer({'endpoint': 'reset', 'session_id': 'arm'})
            said = {'session_id': 'arm', 'prompt': 'transfer the cube'}
            np.testing.assert_array_equal(client.infer(aloha() | said)['actions'], own)
            assert own.shape == (50, 14)


def test_the_command_has_one(capsys):
    served = []

    def client():
        port = int(re.search(r'on ws://127.0.0.1:(\d+)', capsys.readouterr().out)[1])
        with OldClient(port) as connected:
            served.append(connected.infer(mute(libero()))['actions'])

    tiny = ['--contract', 'libero', '--preset', 'tiny', '--checkpoint', 'random', '--port', '0']
    main([*tiny, *SMALL, '--request_seconds', '240', '--prompt', 'put it away'], client)
    assert np.isfinite(served[0]).all()
