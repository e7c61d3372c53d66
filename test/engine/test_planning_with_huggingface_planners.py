"""Memory, KEEP, batches and resumption work with planners in the Hugging Face format."""

import huggingface_planners as hf
import pytest
import torch
from planning_cases import QUESTION, filled

from embodied_kv.capsule import frozen_kv
from embodied_kv.capsule.capsule import FrozenPart
from embodied_kv.memory.prompt import Prompt
from embodied_kv.model.planner_checkpoint import load_planner
from embodied_kv.planning.config import PlanningConfig
from embodied_kv.planning.planner_row import PlannerRow

NUMBERS = dict(max_context_tokens=200, max_answer_tokens=8)


@pytest.fixture(scope='module', params=['gemma3', 'qwen3', 'llama'])
def planner(request, tmp_path_factory):
    """Return a planner without a chat template, whose introduction would fill the rows."""
    folder = tmp_path_factory.mktemp(request.param)
    return load_planner(hf.folder(folder, request.param, template=None))


def opened(folder, planner, **options):
    return filled(folder, planner=planner, **NUMBERS | options)


def test_keep_that_recomputes_everything_answers_as_full_recomputation(planner, tmp_path):
    with opened(tmp_path, planner, recompute_ratio=1.0) as planning:
        full, keep = (planning.plan(QUESTION, method=method) for method in ('full', 'keep'))
    assert keep.text == full.text and keep.segments == full.segments


def test_keep_loads_a_part_of_each_later_layer(planner, tmp_path):
    with opened(tmp_path, planner) as planning:
        plan = planning.plan(QUESTION, method='keep')
    assert plan.computed[0] == plan.tokens and plan.computed[-1] < plan.tokens
    assert plan.loaded[-1] > 0


def test_stored_keys_of_one_segment_serve_at_its_place_in_a_prompt(planner, tmp_path):
    """Stored KV lacks attention to the head, which does not affect layer 0 except for rounding."""
    with opened(tmp_path, planner) as planning:
        rows = []
        for method in ('full', 'full_reuse'):
            plan = planning.plan(QUESTION, method=method)
            rows.append(planning.row.arena.layers[0][0][0, :, : plan.tokens].clone())
    torch.testing.assert_close(*rows, atol=1e-3, rtol=0)


def test_an_interrupted_answer_goes_on_in_another_row(planner, tmp_path):
    with opened(tmp_path, planner) as planning:
        whole = planning.plan(QUESTION, method='full').text
        asked, row = planning.last.asked, planning.row
        prompt = Prompt((), (), list(asked.prompt))
        stops = planner.frame.stops
        decoding, _ = row.answer(prompt, asked, stops)
        begun = [next(decoding), next(decoding)]
        held, (k, v) = row.held, row.arena.row(0)
        kv = frozen_kv.copied('row', k[:, :, : held.tokens], v[:, :, : held.tokens])
    elsewhere = PlannerRow(planner.model, None, PlanningConfig(**NUMBERS), lambda work: work())
    assert elsewhere.resume(
        lambda: frozen_kv.fill(FrozenPart(kv), 'row', elsewhere.arena, 0), held
    )
    said, work = elsewhere.answer(prompt, asked, stops)
    said = list(said)
    assert said[:2] == begun and max(work.computed) == 0
    assert planner.tokenizer.decode(said).strip() == whole
