"""The initial weights attend to the token before, to tokens of one name, and along links."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from embodied_kv.model.planner import Planner
from training.judge.chains import draw_chains
from training.judge.file import JUDGE
from training.judge.start import init_judge
from training.judge.view import JudgeView

SEGMENTS = 12


class Seen(JudgeView):
    """Records the attention of each layer: [heads, T, T] of the first prompt."""

    def attend(self, layer, q, k, v):
        scores = torch.einsum('thd,shd->hts', q[0], k[0]) * q.shape[-1] ** -0.5
        self.weights = (*getattr(self, 'weights', ()), (scores + self._mask).softmax(-1))
        return super().attend(layer, q, k, v)


@pytest.fixture(scope='module')
def looked():
    model = Planner(JUDGE).requires_grad_(False)
    init_judge(model, 0)
    found = []
    for seed in range(20):
        chains = draw_chains(np.random.default_rng(seed), 1, SEGMENTS)
        view = Seen(SEGMENTS, 0)
        ids = torch.from_numpy(np.concatenate([chains.memory, [[0]]], axis=1))
        hidden, rope = model.embed(ids), model.rope(view.positions)
        for i in range(2):
            hidden = model.layer(i, hidden, view, rope)
        found.append((chains, view.weights))
    return found


def test_the_first_layer_looks_at_the_token_before(looked):
    places = torch.arange(1, 2 * SEGMENTS + 1)
    for _, (first, _) in looked:
        assert first[0, places, places - 1].mean() > 0.6


@pytest.mark.parametrize('head, name', [(0, 'ahead'), (1, 'behind')])
def test_the_second_layer_looks_along_the_links(looked, head, name):
    at_links, elsewhere = [], []
    for chains, (_, second) in looked:
        values = second[head, 2 : 2 * SEGMENTS + 1 : 2, 2 : 2 * SEGMENTS + 1 : 2]
        for i, j in enumerate(getattr(chains, name)[0]):
            if 0 <= j < i:
                at_links.append(values[i, j].item())
                elsewhere += [values[i, other].item() for other in range(i) if other != j]
    assert np.mean(at_links) > 3 * np.mean(elsewhere)


def test_another_number_of_heads_is_refused():
    config = replace(JUDGE, backbone=replace(JUDGE.backbone, heads=4))
    with pytest.raises(ValueError, match='4 heads, 2 KV heads, 4 layers: not 2, 2, and 3 or more'):
        init_judge(Planner(config), 0)
