"""The GPU stages find CUDA's headers and driver, wherever `nvcc` is installed."""

import pytest

from benchmarks.common import workers
from benchmarks.gpu import runner, toolchain


def with_headers(root):
    for name in toolchain.HEADERS:
        (root / 'include').mkdir(parents=True, exist_ok=True)
        (root / 'include' / name).touch()
    return root


def program(path, text='#!/bin/sh\n'):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """Return the folder of a machine without CUDA and without its environment variables."""
    for name in ('CUDA_HOME', 'LIBRARY_PATH', 'LD_LIBRARY_PATH'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('PATH', str(tmp_path / 'bin'))
    program(tmp_path / 'bin/ldconfig')
    monkeypatch.setattr(toolchain, 'ROOTS', (tmp_path / 'local/cuda',))
    monkeypatch.setattr(toolchain, 'FOLDERS', ())
    monkeypatch.setattr(toolchain.sysconfig, 'get_paths', lambda: dict(purelib=str(tmp_path)))
    return tmp_path


def test_what_is_not_there_is_not_told(bare):
    assert toolchain.environment(bare / 'out') == {} and not (bare / 'out').exists()


def test_cuda_is_where_its_headers_are_though_nvcc_is_a_script_elsewhere(bare):
    program(bare / 'bin/nvcc')
    home = with_headers(bare / 'local/cuda-13.0')
    with_headers(bare / 'local/cuda-12.9')
    assert toolchain.cuda_home() == home


def test_a_link_to_nvcc_leads_to_cuda(bare):
    home = with_headers(bare / 'elsewhere')
    program(home / 'bin/nvcc')
    (bare / 'bin/nvcc').symlink_to(home / 'bin/nvcc')
    with_headers(bare / 'local/cuda')
    assert toolchain.cuda_home() == home


def test_who_says_where_cuda_is_is_believed(bare, monkeypatch):
    with_headers(bare / 'local/cuda')
    monkeypatch.setenv('CUDA_HOME', str(with_headers(bare / 'own')))
    assert toolchain.cuda_home() == bare / 'own'


def test_the_driver_is_linked_under_the_name_that_is_asked_for(bare, monkeypatch):
    driver = bare / 'drivers' / toolchain.DRIVER
    driver.parent.mkdir()
    driver.touch()
    line = f'\\t{toolchain.DRIVER} (libc6,x86-64) => {driver}\\n'
    program(bare / 'bin/ldconfig', f"#!/bin/sh\nprintf '{line}'\n")
    monkeypatch.setenv('LIBRARY_PATH', '/before')
    for _ in range(2):
        found = toolchain.environment(bare / 'out')
        assert found == dict(LIBRARY_PATH=f'/before:{bare / "out"}')
        assert (bare / 'out' / toolchain.LINKED).resolve() == driver


def test_stages_are_told(bare):
    with_headers(bare / 'local/cuda')
    told = runner.environment(bare / 'out')
    assert told['CUDA_HOME'] == str(bare / 'local/cuda')
    assert told['PYTHONPATH'].startswith(str(workers.ROOT))
