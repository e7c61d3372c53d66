"""examples/robosuite without robosuite: its modules, and a world that is made of numbers."""

import importlib
import sys
import types
from pathlib import Path

import numpy as np
import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / 'examples' / 'robosuite'
MODULES = [path.stem for path in EXAMPLE.glob('*.py')]


@pytest.fixture
def module(monkeypatch):
    """Of the example, by its name; gone after the test."""
    monkeypatch.syspath_prepend(EXAMPLE)
    yield importlib.import_module
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def evaluation(module, monkeypatch):
    """eval.py, beside a simulator and a client that are not there."""
    lift = types.SimpleNamespace(
        FPS=20, INSTRUCTION='lift', OPEN=0.04, PandaLift=None, Seen=types.SimpleNamespace
    )
    client = types.SimpleNamespace(WebsocketClientPolicy=None)
    monkeypatch.setitem(sys.modules, 'panda_lift', lift)
    monkeypatch.setitem(sys.modules, 'openpi_client', types.ModuleType('openpi_client'))
    monkeypatch.setitem(sys.modules, 'openpi_client.websocket_client_policy', client)
    return module('eval')


class World:
    """Goes where it is told at once; lifts the cube after `lasts` steps. told: all of that."""

    def __init__(self, lasts=25):
        self.lasts, self.told, self.steps = lasts, [], 0
        self.joints, self.finger = np.zeros(7), 0.02

    def reset(self, seed):
        self.steps = 0
        self.joints = np.linspace(-0.3, 0.3, 7) - np.array([0, 0, 0, 1, 0, -1, 0]) + seed / 1000
        return self.seen()

    def step(self, joints, finger):
        self.told.append(np.append(joints, finger))
        self.joints, self.finger = np.array(joints), float(finger)
        self.steps += 1
        return self.seen()

    def expert(self):
        return self.joints + 0.01, 0.04 if self.steps < self.lasts / 2 else 0.0

    def seen(self):
        level = np.full((12, 16, 3), self.steps, np.uint8)
        return {
            'time': self.steps / 20,
            'joints': self.joints,
            'finger': self.finger,
            'speeds': np.zeros(7),
            'pictures': {'front': level, 'wrist': level + 100},
            'lifted': self.steps >= self.lasts,
            'cube': np.array([0.5, 0.1, -0.1]),
            'pixels': {'front': np.array([8.0, 4.0]), 'wrist': np.array([3.0, 2.0])},
        }


@pytest.fixture
def world():
    return World()
