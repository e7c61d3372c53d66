"""Two engines have the same fingerprint exactly if one can continue the state of the other."""

import json

import pytest
import torch
from capsule_sessions import begin, capsules_of

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.disk import Disk
from embodied_kv.capsule.fingerprint import mismatch
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import Tier
from embodied_kv.config import TINY
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.fingerprint import fingerprint, sources_digest
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model.policy import Policy
from embodied_kv.session.engine_part import Branch


def test_it_is_the_same_for_an_engine_built_again(make_engine, policy):
    engine = make_engine()
    again = Engine(Policy.random(TINY, seed=1), engine.config)
    assert fingerprint(engine) == fingerprint(again)


def test_more_rows_change_nothing(make_engine):
    assert fingerprint(make_engine()) == fingerprint(make_engine(rows=20, streams=4))


CHANGES = {
    'action_keep_ratio': 0.5,
    'decode_batch_multiple': 4,
    'compression_method': 'streaming_llm',
    'compression_after_tokens': 3,
    'compression_queries': 'row',
    'compression_layer_budgets': 'pyramid',
    'decode_tokens': 32,
    'euler_steps': 4,
    'language_keep_ratio': 0.3,
    'rtc': 'guided',
    'rtc_horizon': 3,
    'rtc_max_guidance': 2.0,
    'rtc_schedule': 'ones',
    'seed': 7,
    'threads': 3,
}


@pytest.mark.parametrize('setting', CHANGES)
def test_a_setting_that_a_continuation_depends_on_changes_it(make_engine, setting):
    ours, theirs = (
        fingerprint(make_engine(**change)) for change in ({}, {setting: CHANGES[setting]})
    )
    assert ours != theirs
    (there, here) = (json.dumps(one.settings[f'engine.{setting}']) for one in (theirs, ours))
    assert f': engine.{setting} was {there} and is {here} here; ' in mismatch(theirs, ours)


def test_an_engine_with_another_setting_refuses_a_capsule_and_names_it(
    make_engine, observe, tmp_path
):
    engine, other = make_engine(), make_engine(seed=7)
    begin(engine, observe(1))
    registry = Registry(fingerprint(engine), disk=Disk(tmp_path))
    capsules_of(engine, registry).snapshot('here', tier=Tier.DISK)
    registry.close()
    capsules = capsules_of(other, Registry(fingerprint(other), disk=Disk(tmp_path)))
    message = 'engine.seed was 0 and is 7 here; start the engine with the settings of the capsule'
    for verb in (
        lambda: capsules.restore('here', None),
        lambda: capsules.fork('here', [Branch()]),
        lambda: capsules.replay('here'),
    ):
        with pytest.raises(CapsuleError, match=message):
            verb()
    assert not other.kv.streams.live()


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
