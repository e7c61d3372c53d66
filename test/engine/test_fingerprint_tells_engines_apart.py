"""Two engines have one fingerprint exactly if one may go on where the other stood."""

import pytest
import torch

from embodied_kv.config import TINY
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.fingerprint import fingerprint, sources_digest
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model.policy import Policy


def test_it_is_the_same_for_an_engine_built_again(make_engine, policy):
    again = Engine(
        Policy.random(TINY, seed=1), EngineConfig(rows=12, streams=8, time_budget=False)
    )
    assert fingerprint(make_engine()) == fingerprint(again)


def test_more_rows_change_nothing(make_engine):
    assert fingerprint(make_engine()) == fingerprint(make_engine(rows=20, streams=4))


@pytest.mark.parametrize('change', [{'decode_tokens': 32}, {'threads': 3}, {'batch_multiple': 4}])
def test_another_layout_or_other_arithmetic_changes_it(make_engine, change):
    assert fingerprint(make_engine(**change)) != fingerprint(make_engine())


def test_one_bit_of_one_weight_changes_it():
    engine = Engine(Policy.random(TINY, seed=1), EngineConfig())
    before = fingerprint(engine)
    with torch.inference_mode():
        bytes_of_weight = engine.policy.model.backbone.embed.weight.data.view(-1).view(torch.uint8)
        bytes_of_weight[0] ^= 1
    assert fingerprint(engine) != before


def test_one_byte_of_a_kernel_changes_it(tmp_path):
    (tmp_path / 'kernel.py').write_text('a = 1')
    before = sources_digest(tmp_path)
    (tmp_path / 'kernel.py').write_text('a = 2')
    assert sources_digest(tmp_path) != before
