"""A client that sends no prompt gets the default prompt of the server, or an error."""

import re

import numpy as np
import pytest
from server_cases import OldClient, aloha, libero, running_server

from embodied_kv.serving.__main__ import main

SMALL = '--engine.max_batch_robots 1 --engine.rows 6 --engine.reserved_rows 2'.split()
SMALL += ['--engine.streams', '1']


def mute(request):
    return {key: value for key, value in request.items() if key != 'prompt'}


def test_missing_prompt_is_an_error_with_the_remedy():
    with running_server('aloha') as opened, opened.client() as client:
        with pytest.raises(
            RuntimeError, match=r'--default_prompt "…", of the node -p default_prompt:="…"'
        ):
            client.infer(mute(aloha()))


def test_default_prompt_of_the_server_is_used():
    with running_server('aloha', default_prompt='transfer the cube') as opened:
        with opened.client() as client:
            own = client.infer(mute(aloha()) | {'session_id': 'arm'})['actions']
            client.infer({'endpoint': 'reset', 'session_id': 'arm'})
            said = {'session_id': 'arm', 'prompt': 'transfer the cube'}
            np.testing.assert_array_equal(client.infer(aloha() | said)['actions'], own)
            assert own.shape == (50, 14)


def test_command_has_a_default_prompt(capsys):
    served = []

    def client():
        port = int(re.search(r'on ws://127.0.0.1:(\d+)', capsys.readouterr().out)[1])
        with OldClient(port) as connected:
            served.append(connected.infer(mute(libero()))['actions'])

    tiny = ['--contract', 'libero', '--preset', 'tiny', '--checkpoint', 'random', '--port', '0']
    main([*tiny, *SMALL, '--request_timeout', '240', '--default_prompt', 'put it away'], client)
    assert np.isfinite(served[0]).all()
