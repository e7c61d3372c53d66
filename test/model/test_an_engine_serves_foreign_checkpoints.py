"""The engine computes the chunks that LeRobot and openpi recorded for raw observations."""

import math

import numpy as np
import pytest
from cases import ALOHA, JAX_ALOHA, JAX_DROID, LEROBOT, PI0, SMOLVLA

from embodied_kv.engine.engine import Engine
from embodied_kv.engine.warmup import warm_up
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model.parity.cases import Case
from embodied_kv.types import Observation

# JAX encodes the time in float32, which moves the chunks of pi0.5 by up to 7e-4. Records in
# which a joint is far from the value at which it stood still in the training data are left out,
# because the engine bounds such a joint.
TOLERANCES = {ALOHA: 5e-4, JAX_DROID: 1e-3}  # 1e-4 for the others


@pytest.mark.parametrize(
    ('folder', 'record'),
    [
        (LEROBOT, 'plain'),
        (ALOHA, 'edge'),
        (PI0, 'plain'),
        (PI0, 'long'),
        (JAX_ALOHA, 'plain'),
        (JAX_ALOHA, 'long'),
        (JAX_DROID, 'plain'),
        (SMOLVLA, 'plain'),
        (SMOLVLA, 'long'),
        (SMOLVLA, 'newline'),
    ],
)
def test_a_raw_observation_becomes_a_chunk_in_policy_units(folder, record):
    case = Case(folder)
    policy = case.checkpoint.load(dtype='float32')
    engine = Engine(policy, EngineConfig(rows=4, streams=2, decode_tokens=16))
    warm_up(engine)
    (handle,) = engine.prefill(
        [
            Observation(
                images=case.images(record),
                state=case.state(record),
                instruction=case.instruction(record),
                stamp=0,
                deadline=math.inf,
                sequence=1,
            )
        ]
    )
    with engine.kv.acquire(handle) as lease:
        (chunk,) = engine.denoise([lease], [math.inf], case.noise().numpy())
    config = policy.config
    assert chunk.values.shape == (config.chunk_size, config.action_dim)
    assert chunk.values.dtype == np.float32
    theirs = case.read(record, 'actions').reshape(chunk.values.shape).numpy()
    scale = policy.processing.normalizer.action_scale.unit
    close = TOLERANCES.get(folder, 1e-4) * scale + 1e-6 * (1 + np.abs(theirs))
    assert (np.abs(chunk.values - theirs) <= close).all()
