"""A deferred choice of tokens keeps as much, but a stream holds its whole prefix until then."""

import pytest
import torch

from benchmarks.common.scene import FullPolicy
from benchmarks.compress.speed import deferred, models
from embodied_kv.config import TINY

CONTEXT = 1000  # tokens


@pytest.fixture(scope='module')
def found():
    """Return the model's config and the rows of the table."""
    patch = pytest.MonkeyPatch()
    patch.setattr(models, 'BACKBONES', dict.fromkeys(models.BACKBONES, TINY.backbone))
    with patch.context(), torch.inference_mode():
        policy = FullPolicy.random(models.model(models.SMALL), device='cpu')
        return policy.config, [*deferred.measure(policy, CONTEXT, (1, 2), 1, 'cpu')]


@pytest.mark.parametrize('streams', [1, 2])
def test_while_it_waits_a_stream_holds_its_whole_prefix(found, streams):
    config, rows = found
    at_once, *later = (row for row in rows if row['streams'] == streams)
    row_mb = CONTEXT * config.kv_bytes_per_token / 1e6
    for row in later:
        assert row['held_mb'] - row['kept_mb'] > 0.8 * row_mb * streams
        assert row['kept_mb'] == pytest.approx(at_once['kept_mb'], rel=0.02)


def test_every_number_of_tokens_is_measured_by_streams(found):
    rows = found[1]
    assert [(row['streams'], row['after']) for row in rows] == [
        (streams, after) for streams in (1, 2) for after in deferred.AFTER
    ]
    assert all(row['ms'] > 0 for row in rows) and rows[0]['later_pct'] == 0
