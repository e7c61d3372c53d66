"""Hugging Face planners equal transformers with random weights; keys can change position."""

import huggingface_planners as hf
import pytest
import torch

from embodied_kv.kv.arena import Arena
from embodied_kv.kv.views import SparsePositionView
from embodied_kv.memory.prompt import Prompt
from embodied_kv.memory.rotate import Rotation
from embodied_kv.model.planner_checkpoint import load_planner
from embodied_kv.planning.config import PlanningConfig
from embodied_kv.planning.plan import PlanRecord
from embodied_kv.planning.planner_row import PlannerRow

TOKENS = 300  # between the shortest and the longest rotary wavelength


@pytest.fixture(scope='module', params=[*hf.FAMILIES])
def pair(request, tmp_path_factory):
    """Return the model of transformers, and the planner loaded from its folder."""
    theirs = hf.reference(request.param)
    path = hf.folder(tmp_path_factory.mktemp(request.param), request.param, model=theirs)
    return theirs, load_planner(path)


def ids(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, hf.VOCABULARY, (1, TOKENS), generator=generator)


@torch.inference_mode()
def test_logits_equal_those_of_transformers(pair):
    theirs, planner = pair
    model, b = planner.model, planner.config.backbone
    arena = Arena(
        layers=b.layers,
        rows=1,
        kv_heads=b.kv_heads,
        max_tokens=TOKENS,
        head_dim=b.head_dim,
        dtype=model.dtype,
        device=model.device,
    )
    arena.set_length(0, TOKENS)
    view = SparsePositionView(arena, 0).bind(torch.arange(TOKENS))
    ours = model.logits(model(ids(), torch.arange(TOKENS)[None], view))
    wanted = theirs(ids()).logits
    assert wanted.std() > 0.1  # else any logits are close
    torch.testing.assert_close(ours, wanted, atol=1e-4, rtol=0)


def test_a_greedy_answer_equals_that_of_transformers(pair):
    theirs, planner = pair
    prompt = ids()[:, :40]
    wanted = theirs.generate(prompt, max_new_tokens=12, do_sample=False)[0, 40:].tolist()
    row = PlannerRow(
        planner.model, None, PlanningConfig(max_answer_tokens=12), lambda work: work()
    )
    asked = PlanRecord('?', 'full', (), tuple(prompt[0].tolist()))
    said = list(row.answer(Prompt((), (), prompt[0].tolist()), asked, {1})[0])
    assert said == [token for token in wanted if token != 1]


@torch.inference_mode()
def test_moved_keys_are_those_of_the_new_position_in_each_layer(pair):
    model = pair[1].model
    move, hidden = Rotation(model.backbone.wavelengths), model.embed(ids()[:, :20])
    for i, layer in enumerate(model.backbone.layers):
        here, there = (
            layer.project(hidden, tables(model, i, torch.arange(at, at + 20)[None]))[1]
            for at in (0, 333)
        )
        torch.testing.assert_close(move(here, 333, i), there, atol=3e-4, rtol=0)


def tables(model, layer, positions):
    """Return the rotary tables that the model passes to this layer."""
    seen = []
    block = model.backbone.layers[layer]
    handle = block.register_forward_pre_hook(lambda _, given: seen.append(given[3]))

    class Nothing:
        def attend(self, layer, q, k, v):
            return q

    rope = model.rope(positions)
    model.layer(layer, torch.zeros(1, positions.shape[1], 32), Nothing(), rope)
    handle.remove()
    return seen[0]
