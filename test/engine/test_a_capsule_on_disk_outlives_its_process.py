"""snapshot to disk, another process, restore: the tokens that would have come."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from capsule_sessions import begin, capsules_of, go_on

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.disk import Disk
from embodied_kv.capsule.reentry import Depth, SceneSummary
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import Tier
from embodied_kv.engine.fingerprint import fingerprint

OTHER_PROCESS = """
import json, sys, time, torch
sys.path.insert(0, sys.argv[1])
from capsule_sessions import capsules_of, go_on
from embodied_kv.capsule.disk import Disk
from embodied_kv.capsule.registry import Registry
from embodied_kv.config import TINY
from embodied_kv.engine_config import EngineConfig
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.fingerprint import fingerprint
from embodied_kv.session.engine_part import Branch
from embodied_kv.model.policy import Policy
torch.set_num_threads(1)
engine = Engine(Policy.random(TINY, seed=1), EngineConfig(rows=12, streams=8, time_budget=False))
capsules = capsules_of(engine, Registry(fingerprint(engine), disk=Disk(sys.argv[2])))
capsules.fork('kept', [Branch()])
print(json.dumps(list(go_on(engine).values())))
"""


def seen(second, moved=0.0):
    joints = np.zeros(7) + moved
    return SceneSummary(joints, {'front': np.zeros((16, 16, 3), np.uint8)}, second * 1_000_000_000)


def kept_on(folder, engine):
    return Registry(fingerprint(engine), disk=Disk(folder))


def test_another_process_says_the_rest(make_engine, observe, tmp_path):
    engine = make_engine()
    begin(engine, observe(1), temperature=0.7, seed=4)
    capsules_of(engine, kept_on(tmp_path, engine)).snapshot('kept', tier=Tier.DISK)
    expected = [[text, list(tokens)] for text, tokens in go_on(engine).values()]
    here = str(Path(__file__).parent)
    run = subprocess.run(
        [sys.executable, '-c', OTHER_PROCESS, here, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(run.stdout) == expected


@pytest.mark.parametrize(
    ('now', 'depth', 'lives'),
    [
        (seen(11), Depth.ACTOR, True),
        (seen(11, moved=0.3), Depth.PLANNER, True),
        (seen(10_000), Depth.HOLD, False),
        (None, Depth.HOLD, False),
    ],
)
def test_how_deep_depends_on_the_present(make_engine, observe, tmp_path, now, depth, lives):
    engine = make_engine()
    begin(engine, observe(1))
    capsules_of(engine, kept_on(tmp_path, engine)).snapshot('kept', seen(10), Tier.DISK)
    expected = list(go_on(engine).values())
    after = make_engine()
    resumed = capsules_of(after, kept_on(tmp_path, after)).restore('kept', now)
    assert resumed.decision.depth == depth
    assert list(go_on(after).values()) == (expected if lives else [])


def test_an_engine_of_other_weights_refuses_it(make_engine, observe, tmp_path):
    engine = make_engine()
    begin(engine, observe(1))
    capsules_of(engine, kept_on(tmp_path, engine)).snapshot('kept', tier=Tier.DISK)
    after = make_engine()
    stranger = Registry('0' * 32, disk=Disk(tmp_path))
    with pytest.raises(CapsuleError, match='weights'):
        capsules_of(after, stranger).restore('kept', seen(11))
    assert after.kv.streams.live() == []
