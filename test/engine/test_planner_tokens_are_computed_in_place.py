"""The planner's token step replays graphs that are captured once, over memory that never moves."""

import pytest
import torch
from planning_cases import CONFIG, PLANNER, QUESTION, TABLE, open_planning

from benchmarks.common.declared_writes import DeclaredWrites
from embodied_kv.kv.arena import Arena
from embodied_kv.model.planner_checkpoint import random_planner
from embodied_kv.planning.planner_rows import PlannerRows, TokenStep
from embodied_kv.runtime.graph_cache import GraphCache, Shape

CUDA = pytest.param(
    'cuda', marks=pytest.mark.skipif(not torch.cuda.is_available(), reason='no CUDA device')
)
ROWS = 4
# rows, tokens, positions
FIRST = [0, 1, 3], [7, 90, 11], [30, 4, 17]
SECOND = [1], [33], [5]


def arena_on(device):
    b = CONFIG.backbone
    arena = Arena(
        layers=b.layers,
        rows=ROWS,
        kv_heads=b.kv_heads,
        max_tokens=CONFIG.max_tokens,
        head_dim=b.head_dim,
        dtype=torch.float32,
        device=device,
    )
    shape, seeded = arena.kv.shape, torch.Generator().manual_seed(0)
    arena.kv.copy_(torch.randn(shape, generator=seeded))
    return arena


def run(step, arena, rows, ids, positions):
    for row, at in zip(rows, positions, strict=True):
        arena.set_length(row, at + 1)
    return step.run(rows, ids)


def eager(rows, ids, positions):
    """Compute the tokens of each row alone; return the next tokens, and the KV of the arena."""
    arena = arena_on('cpu')
    step, said = TokenStep(PLANNER.model, arena, [1]), []
    for one in zip(rows, ids, positions, strict=True):
        said += run(step, arena, *([part] for part in one))
    return said, arena.kv


@pytest.mark.parametrize('device', ['cpu', CUDA])
@pytest.mark.parametrize('sizes', [[1, 2, 3], [1, 2, 4], [4]])
def test_a_batch_says_what_each_row_says_alone_whatever_it_is_padded_to(device, sizes):
    planner = PLANNER if device == 'cpu' else random_planner(CONFIG, seed=3, device=device)
    arena = arena_on(device)
    step = TokenStep(planner.model, arena, sizes)
    assert torch.equal(arena.kv, arena_on(device).kv)  # a capture writes no row
    for batch in (FIRST, SECOND):
        arena.kv.copy_(arena_on(device).kv)
        said, kv = eager(*batch)
        assert run(step, arena, *batch) == said
        assert torch.allclose(arena.kv.cpu(), kv, atol=1e-4)


def test_an_answer_captures_nothing_and_replays_a_graph_a_token(tmp_path):
    rows = PlannerRows(PLANNER.model, 2)
    graphs = rows._token_step.graphs
    captures, addresses = graphs.captures, {b.address for b in graphs.buffers}
    with open_planning(tmp_path, rows=rows) as planning:
        planning.upsert(*TABLE)
        planning.plan(QUESTION)
    assert graphs.captures == captures == len(graphs)
    assert {b.address for b in graphs.buffers} == addresses
    alone = graphs[Shape('planner_token', 1, 1)]
    assert alone.replays == rows.steps > 0


def test_more_rows_than_there_are_slots_are_refused():
    arena = arena_on('cpu')
    step = TokenStep(PLANNER.model, arena, [1, 2])
    with pytest.raises(ValueError, match='3 rows do not fit into 2: raise planner_rows'):
        run(step, arena, *FIRST)


def test_a_step_writes_its_buffers_and_the_new_tokens_alone(monkeypatch):
    monkeypatch.setattr(GraphCache, 'watch', DeclaredWrites)  # raises UndeclaredWriteError
    arena = arena_on('cpu')
    step = TokenStep(PLANNER.model, arena, [1, 4])
    before = arena.kv.clone()
    rows, _, positions = FIRST
    run(step, arena, *FIRST)
    changed = (arena.kv != before).any(-1).any(0).any(2).nonzero()  # layer, row, position
    assert sorted(map(tuple, changed.tolist())) == sorted(
        (layer, row, at)
        for row, at in zip(rows, positions, strict=True)
        for layer in range(CONFIG.backbone.layers)
    )
