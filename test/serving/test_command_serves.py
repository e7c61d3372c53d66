"""`python -m embodied_kv.serving`: each setting is an option; an invalid one ends the command."""

import logging
import os
import re
import signal

import pytest
from server_cases import OldClient, key_file, libero, until

from embodied_kv.serving import __main__ as command
from embodied_kv.serving.__main__ import main

TINY = ['--contract', 'libero', '--preset', 'tiny', '--checkpoint', 'random', '--port', '0']
PATIENT = ['--request_timeout', '240']
SMALL = '--engine.max_batch_robots 1 --engine.rows 6 --engine.reserved_rows 2'.split()
SMALL += ['--engine.streams', '1']


def test_command_serves_until_stopped(capsys):
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
        (['--contract', 'libro'], 'one of aloha'),
        (['--host', '0.0.0.0'], 'write a key into a file'),
        (['--port', '70000'], '--port must be from 0 to 65535 (got 70000)'),
        (['--engine.rows', '2'], '--engine.rows must be from 3 to 4096 (got 2)'),
        (['--preset', 'huge'], "(got 'huge')"),
        (['--scheduler', 'best'], 'scheduler must be one of kairos, fifo'),
    ],
)
def test_invalid_option_ends_the_command_with_the_remedy(options, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*TINY, *SMALL, *options], lambda: None)
    assert ended.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize('option', ['--engine.margin_ms 1.0', '--engine.margin_ms=1.0'])
def test_former_option_is_refused_with_the_present_one(option, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*TINY, *option.split()], lambda: None)
    assert ended.value.code == 2
    said = 'option --engine.margin_ms was renamed; use --engine.deadline_margin_ms'
    assert said in capsys.readouterr().err


def test_keys_are_read_before_a_model(capsys):
    nothing = ['--contract', 'libero', '--checkpoint', '/nowhere/model']
    with pytest.raises(SystemExit):
        main([*nothing, '--api_keys_file', '/nowhere/keys'], lambda: None)
    assert '/nowhere/keys' in capsys.readouterr().err


def test_sighup_reloads_keys_and_is_ignored_during_loading(tmp_path, monkeypatch, caplog):
    file, _ = key_file(tmp_path, 'arm')
    before, load = signal.getsignal(signal.SIGHUP), command.load_policy

    def hung_up(*arguments):
        os.kill(os.getpid(), signal.SIGHUP)
        return load(*arguments)

    def hang_up():
        os.kill(os.getpid(), signal.SIGHUP)
        until(lambda: 'keys reloaded: arm' in caplog.text)

    monkeypatch.setattr(command, 'load_policy', hung_up)
    with caplog.at_level(logging.INFO):
        main([*TINY, *SMALL, '--api_keys_file', file], hang_up)
    assert signal.getsignal(signal.SIGHUP) == before
