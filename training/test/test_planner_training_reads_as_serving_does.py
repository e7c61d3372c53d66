"""Questions packed in one pass have the losses that each has after a plain prefill."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from embodied_kv.config import BackboneConfig
from embodied_kv.model.planner import PlannerConfig
from embodied_kv.model.planner_checkpoint import random_planner
from training.common.batch import EMPTY
from training.planner.corpus import planner_tokenizer, whole_corpus
from training.planner.exam import GrowingCache
from training.planner.lessons import LessonSampler
from training.planner.mission_lessons import MissionSampler
from training.planner.reading import PlannerObjective

CONFIG = PlannerConfig('test', BackboneConfig(32, 3, 4, 2, 8, 48, 640), max_tokens=1280)


def plain(planner, memory, packed, answers):
    """Return the cross-entropy of each token of an answer, and whether it is exact.

    The answer follows a causal prefill of all before it.
    """
    ids = torch.cat([memory, packed])[None]
    places = torch.arange(ids.shape[1])[None]
    hidden = planner.model(ids, places, GrowingCache())[0, len(memory) :]
    logits = planner.model.logits(hidden)
    at = answers != EMPTY
    exact = bool((logits[at].argmax(-1) == answers[at]).all())
    return F.cross_entropy(logits[at], answers[at], reduction='none'), exact


@pytest.mark.parametrize(
    ('sampler', 'size'), [(LessonSampler, 8), (LessonSampler, 40), (MissionSampler, 9)]
)
def test_losses_of_a_lesson_equal_those_behind_plain_prefills(sampler, size):
    torch.manual_seed(0)
    planner = random_planner(CONFIG, planner_tokenizer(640, whole_corpus()), seed=1)
    lesson = sampler(planner.tokenizer).lesson(np.random.default_rng(0), 2, size)
    with torch.no_grad():
        values = PlannerObjective(planner.model, middle=2, late=3)(lesson)
        losses, exacts = [], []
        for b, length in enumerate(lesson.lengths):
            for n, segment in enumerate(lesson.segment[b]):
                for s in range(int(segment.max()) + 1):
                    own = segment == s
                    if not (lesson.answer[b, n, own] != EMPTY).any():
                        continue  # a name alone
                    loss, exact = plain(
                        planner,
                        lesson.memory[b, :length],
                        lesson.packed[b, n, own],
                        lesson.answer[b, n, own],
                    )
                    losses.append(loss)
                    exacts.append(exact)
    torch.testing.assert_close(values['answers'], torch.cat(losses).mean(), rtol=1e-4, atol=1e-5)
    assert values['exact'].tolist() == exacts


def test_an_answer_is_exact_where_no_token_of_it_is_wrong():
    planner = random_planner(CONFIG, planner_tokenizer(640, whole_corpus()), seed=1)
    lesson = LessonSampler(planner.tokenizer).lesson(np.random.default_rng(0), 2, 10)
    objective = PlannerObjective(planner.model, middle=2, late=3)
    with torch.no_grad():
        assert not objective(lesson)['exact'].any()
        # Zero weights always predict token 0, which is right where every label is 0.
        for p in planner.model.parameters():
            p.zero_()
        lesson.answer[(lesson.answer != EMPTY) & (lesson.segment == 0)] = 0
        exact = objective(lesson)['exact'].tolist()
    assert sum(exact) == lesson.segment[:, :, 0].numel()


def test_a_cache_that_was_cut_reads_on_as_if_nothing_had_been():
    planner = random_planner(CONFIG, planner_tokenizer(640, whole_corpus()), seed=1)
    ids = torch.arange(12)[None] + 5
    places = torch.arange(12)[None]
    cache = GrowingCache()
    with torch.no_grad():
        whole = planner.model(ids, places, GrowingCache())
        planner.model(ids[:, :8], places[:, :8], cache)
        planner.model(ids[:, 3:7], places[:, 8:], cache)
        cache.cut(8)
        rest = planner.model(ids[:, 8:], places[:, 8:], cache)
    torch.testing.assert_close(rest, whole[:, 8:], rtol=1e-4, atol=1e-5)
