"""One pass with a mask equals a prompt per question, and KV computed per segment."""

import numpy as np
import torch

from embodied_kv.kv.arena import Arena
from embodied_kv.memory.prefill import Prefill
from embodied_kv.memory.prompt import Piece, Prompt
from embodied_kv.memory.reuse import FullRecompute, Reuse
from embodied_kv.memory.rotate import Rotation
from embodied_kv.model.layers import wavelengths
from embodied_kv.model.planner import Planner
from training.judge.chains import ASK, BOS, draw_chains
from training.judge.exam import problems_of
from training.judge.file import JUDGE
from training.judge.lessons import answers, draw_chain_batch, read
from training.judge.start import init_judge
from training.judge.view import JudgeView

B = JUDGE.backbone


def make_judge():
    model = Planner(JUDGE).requires_grad_(False)
    init_judge(model, 0)
    return model


def arena(tokens):
    return Arena(
        layers=B.layers,
        rows=1,
        kv_heads=B.kv_heads,
        head_dim=B.head_dim,
        max_tokens=tokens,
        dtype=torch.float32,
    )


def test_questions_of_one_pass_do_not_see_each_other():
    model, batch = make_judge(), draw_chain_batch(np.random.default_rng(0), 2, 8, 5)
    packed = answers(model, read(model, batch.ids, batch.view), batch.view)
    view, memory = JudgeView(8, 1), 1 + 2 * 8 + 1
    for i in range(5):
        ids = torch.cat([batch.ids[:, :memory], batch.ids[:, memory + i, None]], dim=1)
        one = answers(model, read(model, ids, view), view)[:, 0]
        torch.testing.assert_close(packed[:, i], one, atol=1e-5, rtol=0)


def test_the_mask_alone_equals_full_reuse_of_moved_keys():
    model = make_judge()
    ids, _ = problems_of(draw_chains(np.random.default_rng(1), 1, 9))
    pairs = ids[0, 1:-2].view(-1, 2).tolist()
    kv = {}

    def load(unit, layer):
        return kv[unit][layer]

    move = Rotation(wavelengths(B.head_dim, B.rope_theta)[None])
    for pair in pairs:  # each segment's own KV, from position 0 on
        row = arena(2)
        Prefill(model, row, 0, load, move).run(Prompt((), (), pair), FullRecompute())
        kv[str(pair)] = [tuple(part[0] for part in layer) for layer in row.layers]
    pieces = tuple(Piece(f's{i}', pair, str(pair)) for i, pair in enumerate(pairs))
    prompt = Prompt((BOS,), pieces, (ASK, int(ids[0, -1])))
    for reuse, isolated in ((Reuse(), True), (FullRecompute(), False)):
        hidden, _ = Prefill(model, arena(JUDGE.max_tokens), 0, load, move).run(prompt, reuse)
        view = JudgeView(9, 1, isolated)
        masked = read(model, ids, view)[-1][:, view.asked]
        torch.testing.assert_close(hidden, masked, atol=2e-5, rtol=0)
