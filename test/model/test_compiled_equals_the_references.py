"""An engine with compiled graphs computes the chunks recorded from the public references."""

import math
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pytest
from cases import ALOHA, CASES, FAMILIES, JAX_ALOHA, JAX_DROID, LEROBOT, LIBERO, PI0, SMOLVLA

from embodied_kv.engine import parity
from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model.parity.cases import Case
from embodied_kv.model.parity.golden import RESULT, Golden
from embodied_kv.model.policy import Policy
from embodied_kv.model.processing.images import BILINEAR
from embodied_kv.runtime.compiled import Compiler
from embodied_kv.types import Observation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # compilation is slow
GOLDEN = LEROBOT.parent / 'pi05_tiny_a.safetensors'
RECORDS = {LEROBOT: 'plain', LIBERO: 'plain', ALOHA: 'edge', PI0: 'plain'}
RECORDS |= {JAX_ALOHA: 'plain', JAX_DROID: 'plain', SMOLVLA: 'plain'}


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """Return a function that creates an engine whose graphs of chunks are compiled."""
    compile = Compiler.compile

    def make(policy):
        names = 'encode_images', f'prefill 1x{policy.config.prefix_tokens}', 'denoise'

        def chosen(self, name, *others):
            return compile(self, name, *others) if name.startswith(names) else None

        monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
        monkeypatch.setattr(Compiler, 'compile', chosen)
        size = dict(rows=4, streams=1, decode_tokens=16, time_budget=False)
        return Engine(policy, EngineConfig(**size, compile='now'))

    return make


@contextmanager
def compiled_alone(engine, images):
    """Assert that the block runs a frame of these images by compiled graphs."""
    before = replays(engine)
    yield
    ran = {name.split()[0] for name, count in replays(engine).items() if count > before[name]}
    some_are_missing = any(image is None for image in images)  # compiled for all views
    assert ran == {'prefill', 'denoise'} | (set() if some_are_missing else {'encode_images'})


def replays(engine):
    """Return the number of replays of each compiled graph, by name."""
    graphs = [engine.graphs[shape] for shape in engine.graphs.shapes]
    return {graph.name: graph.compiled_replays for graph in graphs if graph.is_compiled}


@pytest.mark.parametrize('folder', CASES + FAMILIES, ids=lambda folder: folder.name)
def test_a_recorded_observation_becomes_the_recorded_chunk(compiled, folder):
    case, record = Case(folder), RECORDS[folder]
    engine = compiled(case.checkpoint.load(dtype='float32'))
    with compiled_alone(engine, case.images(record)):
        made = parity.quantity(engine, case, record)
    error, is_close = made.compare(parity.recorded(case, record))
    assert is_close, error


@dataclass(frozen=True, eq=False)
class Samples(Policy):
    """A policy with the golden file's model; instruction and images are numbers of a sample."""

    golden: Golden | None = None

    def prompt_ids(self, instruction, state):
        number = int(instruction)
        valid = self.golden.inputs['token_mask'][number]
        return self.golden.inputs['tokens'][number][valid].tolist()

    def pixels(self, images):
        (number,) = {int(image.max()) for image in images if image is not None}
        shown = [image is not None for image in images]
        recorded = self.golden.inputs['images'][number][shown]
        return ((recorded + 1) / 2).permute(0, 2, 3, 1).numpy()

    def actions(self, normalised, state):
        return np.array(normalised)


def test_samples_become_their_recorded_actions(compiled):
    golden = Golden(GOLDEN)
    config, random = golden.config, Policy.random(golden.config)
    processing = replace(random.processing, resize=BILINEAR)
    model = golden.model()
    engine = compiled(Samples(config, model, random.tokenizer, processing, golden=golden))
    state = np.zeros(config.state_dim, np.float32)
    for number, shown in enumerate(golden.inputs['image_masks'].tolist()):
        picture = np.full((8, 8, 3), number, np.uint8)
        images = [picture if there else None for there in shown]
        seen = Observation(
            images=images,
            state=state,
            instruction=str(number),
            stamp=0,
            deadline=math.inf,
            sequence=1,
        )
        with compiled_alone(engine, images):
            made = parity.denoised(engine, seen, golden.inputs['noise'][[number]].numpy())
        theirs = golden.read('actions')[number].numpy()
        np.testing.assert_allclose(made, theirs, rtol=0, atol=RESULT)
