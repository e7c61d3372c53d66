"""All text of a prompt scores its prefix, also an instruction before a state of 32 numbers."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from embodied_kv.config import TINY
from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model.policy import Policy
from embodied_kv.types import Observation

DIMS, LONGEST = 32, 200  # of pi0.5: size of the state, tokens of the longest prompt
BEHIND = 50  # tokens; the state alone has more


@pytest.fixture(scope='module')
def policy():
    torch.set_num_threads(1)
    config = replace(
        TINY, state_dim=DIMS, action_dim=DIMS, padded_action_dim=DIMS, max_text=LONGEST
    )
    return Policy.random(config, seed=1)


def frame(instruction):
    views, size = TINY.views, TINY.vision.image_size
    image = np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8)
    moment = dict(stamp=0, deadline=float('inf'), sequence=0)
    return Observation((image,) * len(views), np.zeros(DIMS, np.float32), instruction, **moment)


def scored(policy, instruction):
    """Return an engine that prefilled and scored a frame, and the ids of the scoring text."""
    engine = Engine(policy, EngineConfig(rows=4, time_budget=False, language_keep_ratio=0.3))
    engine.prefill([frame(instruction)])
    return engine, policy.prompt_ids(instruction, np.zeros(DIMS, np.float32))


def test_the_state_alone_is_longer_than_the_last_50_tokens(policy):
    state = policy.prompt_ids('', np.zeros(DIMS, np.float32))
    assert len(state) > BEHIND


def test_all_queries_of_the_prompt_are_summed(policy):
    engine, ids = scored(policy, 'red cup')
    n = engine.kv.frames.current().length
    columns = engine.compression.scores.columns[0, :, :, :n]
    # Each query's attention sums to one, and the text's queries see nothing but the prefix.
    torch.testing.assert_close(columns.sum(-1), torch.full(columns.shape[:2], float(len(ids))))


def test_another_instruction_scores_otherwise(policy):
    """Layer 0 has equal queries of the state, so the difference is due to the instruction."""
    images = len(TINY.views) * TINY.vision.tokens
    columns = [
        scored(policy, words)[0].compression.scores.columns[0, 0, :, :images].clone()
        for words in ('red cup', 'big box')
    ]
    assert not torch.allclose(*columns, rtol=1e-3)
