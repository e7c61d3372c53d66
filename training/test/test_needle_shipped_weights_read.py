"""The bundled needle weights read whole pages, and fail where a code's patches are dropped."""

import pytest
import torch

from benchmarks.common.weights import weights_of
from benchmarks.compress.needle import collect
from benchmarks.compress.ways import STRICT, Way
from embodied_kv.config import NEEDLE
from embodied_kv.model.checkpoints.open import open_checkpoint
from embodied_kv.model.weights import Weights

PAGES = 3  # of 7 questions each
LOST = Way('streaming_llm', 0.01, STRICT)


@pytest.fixture(scope='module')
def found():
    torch.set_num_threads(1)
    return collect(open_checkpoint(weights_of('needle'), config=NEEDLE).load(), [LOST], PAGES)


def test_codes_are_read_from_the_whole_cache(found):
    assert found.of(None).mean() >= 0.95


def test_codes_are_not_read_without_their_patches(found):
    assert max(found.needles[LOST]) < 0.5
    assert found.of(LOST).mean() < 0.2


def test_the_model_card_says_what_the_weights_are():
    card = Weights(weights_of('needle')).metadata
    assert {'embodied_kv.recipe', 'embodied_kv.trained', 'embodied_kv.use', 'license'} <= set(card)
    assert (weights_of('needle') / 'model.safetensors').stat().st_size < 3e6
