"""A server with a SmolVLA folder of LeRobot and the robot's contract serves openpi's client."""

import re
from pathlib import Path

import numpy as np
from server_cases import OldClient

from embodied_kv.serving.__main__ import main

FOLDER = Path(__file__).parents[1] / 'data' / 'e2e_lerobot_smolvla'
SMALL = '--engine.max_batch_robots 1 --engine.rows 6 --engine.reserved_rows 2 --engine.streams 1'


def request(**changed):
    random = np.random.default_rng(0)
    picture = random.integers(0, 256, (48, 64, 3), np.uint8)
    views = ('observation.images.front', 'observation.images.wrist')
    state = np.zeros(6, np.float32)
    return dict.fromkeys(views, picture) | {
        'observation.state': state,
        'prompt': 'pick up the block',
        **changed,
    }


def test_a_client_receives_chunks_that_depend_on_what_it_sends(capsys):
    received = []

    def client():
        port = int(re.search(r'ws://127.0.0.1:(\d+)', capsys.readouterr().out)[1])
        with OldClient(port) as connected:
            for changed in ({}, {'observation.state': np.full(6, 30, np.float32)}):
                received.append(connected.infer(request(**changed))['actions'])

    options = ['--contract', 'so101', '--checkpoint', str(FOLDER), '--port', '0']
    main([*options, *SMALL.split(), '--request_timeout', '240'], client)
    assert [actions.shape for actions in received] == [(50, 6)] * 2
    assert np.isfinite(received).all()
    assert np.abs(received[0] - received[1]).max() > 1e-3
