"""The policy that comes with an example loads with the example's contract and acts."""

from pathlib import Path

import numpy as np
import pytest

from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.serving.load import load_policy
from embodied_kv.types import Observation

EXAMPLES = Path(__file__).parents[2] / 'examples'
CONFIG = EngineConfig(compile='off', time_budget=False)


@pytest.mark.parametrize('contract', ['robosuite/lift.yaml', 'aloha/transfer.yaml'])
def test_it_acts_by_its_contract(contract):
    path, warned = EXAMPLES / contract, []
    robot = Embodiment.load(str(path))
    policy = load_policy(robot, '', str(path.parent / 'policy'), CONFIG, print, warned.append)
    c, engine = policy.config, Engine(policy, CONFIG)
    size, middle = c.vision.image_size, np.zeros(c.state_dim, np.float32)
    images = tuple(np.zeros((size, size, 3), np.uint8) for _ in c.views)
    seen = Observation(images, middle, 'go', stamp=0, deadline=np.inf, sequence=0)
    with engine.kv.acquire(engine.prefill([seen])[0]) as lease:
        (chunk,) = engine.denoise([lease], [np.inf])
    assert chunk.values.shape == (c.chunk_size, c.action_dim)
    assert np.isfinite(chunk.values).all() and not warned
