"""`python -m embodied_kv.serving`: a setting is an option; what cannot be is said and ends it."""

import re

import pytest
from door_cases import OldClient, libero

from embodied_kv.serving.__main__ import main

TINY = ['--contract', 'libero', '--preset', 'tiny', '--checkpoint', 'random', '--port', '0']
PATIENT = ['--request_seconds', '240']
SMALL = '--engine.robots 1 --engine.rows 6 --engine.reserved_rows 2 --engine.streams 1'.split()


def test_it_serves_until_it_is_told_to_stop(capsys):
    served = []

    def client():
        port = int(
            re.search(r'serving libero on ws://127.0.0.1:(\d+)', capsys.readouterr().out)[1]
        )
        with OldClient(port) as connected:
            served.append(connected.infer(libero())['actions'].shape)

    main([*TINY, *SMALL, *PATIENT], client)
    assert served == [(10, 7)]


@pytest.mark.parametrize(
    'options, said',
    [
        (['--contract', 'libro'], 'none of aloha'),
        (['--host', '0.0.0.0'], 'write a key into a file'),
        (['--port', '70000'], '--port is 70000: it must lie from 0 to 65535'),
        (['--engine.rows', '2'], '--engine.rows is 2'),
        (['--preset', 'huge'], "no preset 'huge'"),
    ],
)
def test_what_cannot_be_ends_it_with_what_to_write(options, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*TINY, *SMALL, *options], lambda: None)
    assert ended.value.code == 2 and said in capsys.readouterr().err


def test_keys_are_read_before_a_model(capsys):
    nothing = ['--contract', 'libero', '--checkpoint', '/nowhere/model']
    with pytest.raises(SystemExit):
        main([*nothing, '--api_keys', '/nowhere/keys'], lambda: None)
    assert '/nowhere/keys' in capsys.readouterr().err
