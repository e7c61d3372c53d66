"""A cache holds as many streams as the capacity table states, and not one more."""

import pytest
import torch

from benchmarks.common.scene import FullPolicy
from benchmarks.compress.speed import models, scene, serve
from embodied_kv.config import TINY

CONTEXT = 1000


@pytest.fixture(scope='module')
def policy():
    torch.set_num_threads(1)
    return FullPolicy.random(models.model('tiny', TINY.backbone, dtype='float32'))


@torch.inference_mode()
@pytest.mark.parametrize('rows', [8, 16])
def test_what_is_said_to_fit_fits(policy, rows):
    size = rows * scene.longest(policy, CONTEXT) * policy.config.kv_bytes_per_token
    row = serve.capacity(policy, CONTEXT, size)
    for way, config in (('full', serve.whole), ('compressed', serve.compressed)):
        assert row[f'{way}_mb'] <= row['cache_mb'] == size / 1e6
        assert row[f'{way}_streams'] == config(policy, CONTEXT, size)['streams']
    assert 1 < row['gain'] < row['bound']
