"""Fixtures for every available device."""

import pytest
import torch

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason='there is no CUDA device')


@pytest.fixture(params=['cpu', pytest.param('cuda', marks=needs_cuda)])
def device(request):
    return torch.device(request.param, 0) if request.param == 'cuda' else torch.device('cpu')


@pytest.fixture
def cuda():
    if not torch.cuda.is_available():
        pytest.skip('there is no CUDA device')
    return torch.device('cuda', 0)
