"""Fixtures to test the examples without their simulators: their modules and a numeric world."""

import importlib
import sys
import types
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / 'examples'


def modules(monkeypatch, example):
    """Yield the import function for modules of an example and of common; undo it afterwards."""
    for folder in ('common', example):
        monkeypatch.syspath_prepend(EXAMPLES / folder)
    path = list(sys.path)
    yield importlib.import_module
    sys.path[:] = path  # the examples' modules extend it
    for folder in ('common', example):
        for module in (EXAMPLES / folder).glob('*.py'):
            sys.modules.pop(module.stem, None)


@pytest.fixture
def module(monkeypatch):
    """Yield a function that imports a module of the Lift example by name."""
    yield from modules(monkeypatch, 'robosuite')


@pytest.fixture
def transfer(monkeypatch):
    """Yield a function that imports a module of the TransferCube example by name."""
    yield from modules(monkeypatch, 'aloha')


@pytest.fixture
def evaluation(module, monkeypatch):
    """Return the module trial.py, with a stub for its client."""
    client = types.SimpleNamespace(WebsocketClientPolicy=None)
    monkeypatch.setitem(sys.modules, 'openpi_client', types.ModuleType('openpi_client'))
    monkeypatch.setitem(sys.modules, 'openpi_client.websocket_client_policy', client)
    return module('trial')


class World:
    """Moves at once where it is commanded and lifts the cube after `lasts` steps.

    told: all commands.
    """

    def __init__(self, lasts=25):
        self.lasts, self.told, self.steps = lasts, [], 0
        self.joints = np.append(np.zeros(7), 0.02)

    def reset(self, seed):
        self.steps = 0
        self.joints[:7] = np.linspace(-0.3, 0.3, 7) - [0, 0, 0, 1, 0, -1, 0] + seed / 1000
        return self.seen()

    def step(self, joints):
        self.told.append(np.array(joints))
        self.joints = np.array(joints)
        self.steps += 1
        return self.seen()

    def expert(self):
        return np.append(self.joints[:7] + 0.01, 0.04 if self.steps < self.lasts / 2 else 0.0)

    def seen(self):
        level = np.full((12, 16, 3), self.steps, np.uint8)
        return {
            'time': self.steps / 20,
            'joints': self.joints.copy(),
            'speeds': np.zeros(8),
            'pictures': {'front': level, 'wrist': level + 100},
            'done': self.steps >= self.lasts,
            'cube': np.array([0.5, 0.1, -0.1]),
            'pixels': {'front': np.array([8.0, 4.0]), 'wrist': np.array([3.0, 2.0])},
        }


@pytest.fixture
def world():
    return World()
