"""examples/aloha: the client's requests and output, with stubs in place of the simulator."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from embodied_kv.robots.embodiment import Embodiment

CLOSED, OPEN = 0.01844, 0.058


@pytest.fixture
def simulated(transfer, monkeypatch):
    """Return the import function of the example, with stubs for packages of its environment."""
    for name in ('OPENBLAS_NUM_THREADS', 'MUJOCO_GL', 'LP_NUM_THREADS'):
        monkeypatch.setenv(name, '1')  # restored after the test, as the module sets them
    flags = SimpleNamespace(mjRND_SHADOW=0, mjRND_REFLECTION=1)
    constants = {
        'ASSETS_DIR': None,
        'DT': 0.02,
        'normalize_puppet_gripper_position': lambda x: (x - CLOSED) / (OPEN - CLOSED),
        'unnormalize_puppet_gripper_position': lambda x: CLOSED + x * (OPEN - CLOSED),
    }
    stubs = {
        'mujoco': {'mjtRndFlag': flags, 'MjModel': None, 'MjvGLCamera': None},
        'dm_control': {},
        'dm_control.mujoco': {'Physics': None},
        'dm_control.rl': {},
        'dm_control.rl.control': {'Environment': None},
        'gym_aloha': {},
        'gym_aloha.constants': constants,
        'gym_aloha.tasks': {'sim': SimpleNamespace(TransferCubeTask=object)},
        'gym_aloha.utils': {'sample_box_pose': None},
        'openpi_client': {},
        'openpi_client.websocket_client_policy': {'WebsocketClientPolicy': None},
    }
    for name, content in stubs.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    return transfer


@pytest.fixture
def robot(simulated, monkeypatch):
    """Return the robot of eval.py, and arms that only record their commands."""
    joints = np.linspace(-0.6, 0.6, 14)
    joints[[6, 13]] = CLOSED, OPEN
    told = []
    arms = SimpleNamespace(
        joints=joints,
        best=3,
        told=told,
        reset=lambda seed: None,
        tick=lambda joints: told.append(joints),
        see=lambda: SimpleNamespace(
            joints=joints,
            pictures={
                view: np.zeros((8, 8, 3), np.uint8)
                for view in ('high', 'left_wrist', 'right_wrist')
            },
        ),
    )
    code = simulated('eval')
    monkeypatch.setattr(code, 'TwoArms', lambda size: arms)
    return code.Transfer(8), arms


def test_a_request_has_the_keys_and_shapes_of_the_contract(robot, simulated):
    contract = Embodiment.load(str(simulated('link').CONTRACT)).contract
    request, clients = robot[0].request(), contract.clients
    pictures = {f'images/{name}': picture.shape for name, picture in request['images'].items()}
    assert pictures == dict.fromkeys(clients.views.values(), (3, 8, 8))
    assert {key: len(request[key]) for key in clients.state} == clients.state


def test_a_gripper_is_0_closed_and_1_open_on_both_ways(robot):
    driven, arms = robot
    held = driven.reset(0)
    np.testing.assert_allclose(held[[6, 13]], [0, 1], atol=1e-9)
    driven.step(held)
    np.testing.assert_allclose(arms.told[0], arms.joints)


def test_how_far_it_came_is_gym_alohas_reward(robot):
    assert robot[0].stages == {'touched': 1, 'raised': 1, 'met': 1, 'transferred': 0}


@pytest.mark.parametrize(
    ('place', 'at'),
    [((0.0, -0.15, -1.0), (48, 48)), ((0.46, 0.31, -1.0), (96, 0)), ((0, 0, 1), (None, None))],
)
def test_pixels_are_those_of_the_window_that_is_drawn(simulated, place, at):
    code = simulated('two_arms')
    arms = SimpleNamespace(
        model=SimpleNamespace(camera=lambda name: SimpleNamespace(id=0), cam_fovy=[90.0]),
        data=SimpleNamespace(cam_xmat=np.eye(3).reshape(1, 9), cam_xpos=np.zeros((1, 3))),
        cube=(np.array(place), np.eye(3)),
        _renderer=SimpleNamespace(height=96),
    )
    found = code.TwoArms.cube_pixels(arms)['high']
    np.testing.assert_allclose(found, np.array(at, np.float64), atol=1e-9)
