"""Another process restores a capsule from the disk, and decodes the same tokens."""

import json
import subprocess
import sys
from dataclasses import asdict
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
config = EngineConfig(**json.loads(sys.argv[3]))
engine = Engine(Policy.random(TINY, seed=1), config)
capsules = capsules_of(engine, Registry(fingerprint(engine), disk=Disk(sys.argv[2])))
capsules.fork('kept', [Branch()])
print(json.dumps(list(go_on(engine).values())))
"""


def seen(second, moved=0.0):
    joints = np.zeros(7) + moved
    return SceneSummary(joints, {'front': np.zeros((16, 16, 3), np.uint8)}, second * 1_000_000_000)


def keep(folder, engine, scene=None):
    """Store a snapshot on the disk, as a process that ends afterwards."""
    registry = Registry(fingerprint(engine), disk=Disk(folder))
    capsules_of(engine, registry).snapshot('kept', scene, Tier.DISK)
    registry.close()


def found(folder, engine, made_by=None):
    """Return the session of a new process with the capsules of a folder."""
    return capsules_of(engine, Registry(made_by or fingerprint(engine), disk=Disk(folder)))


def test_another_process_says_the_rest(make_engine, observe, tmp_path):
    engine = make_engine()
    begin(engine, observe(1), temperature=0.7, seed=4)
    keep(tmp_path, engine)
    expected = [[text, list(tokens)] for text, tokens in go_on(engine).values()]
    here, config = str(Path(__file__).parent), json.dumps(asdict(engine.config))
    run = subprocess.run(
        [sys.executable, '-c', OTHER_PROCESS, here, str(tmp_path), config],
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
    keep(tmp_path, engine, seen(10))
    expected = list(go_on(engine).values())
    after = make_engine()
    resumed = found(tmp_path, after).restore('kept', now)
    assert resumed.decision.depth == depth
    assert list(go_on(after).values()) == (expected if lives else [])


def test_an_engine_of_other_weights_refuses_it(make_engine, observe, tmp_path):
    engine = make_engine()
    begin(engine, observe(1))
    keep(tmp_path, engine)
    after = make_engine()
    with pytest.raises(CapsuleError, match='weights'):
        found(tmp_path, after, '0' * 32).restore('kept', seen(11))
    assert after.kv.streams.live() == []
