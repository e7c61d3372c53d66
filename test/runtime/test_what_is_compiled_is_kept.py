"""A computation is compiled once per machine and loaded from then on, or runs eagerly."""

import gc
import os
import shutil
from pathlib import Path

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from embodied_kv import storage
from embodied_kv.runtime import compiled
from embodied_kv.runtime.buffer import Buffer, Buffers
from embodied_kv.runtime.compiled import Compiler, Traced, trace

WIDTH = 32


class Work:
    """x <- tanh(x w) in its own memory, and a count of its steps."""

    def __init__(self, width=WIDTH):
        self.x, self.count = torch.linspace(-1, 1, width)[None], torch.zeros(1, dtype=torch.int64)
        self.w = torch.eye(width).roll(1, 0)
        self.buffers = Buffers([Buffer('x', self.x), Buffer('count', self.count)])

    def __call__(self):
        self.x.copy_(torch.tanh(self.x @ self.w))
        self.count.add_(1)


@pytest.fixture
def said():
    return []


@pytest.fixture
def compiler(tmp_path, said):
    return Compiler(say=said.append, folder=tmp_path / 'kept')


def key(work, threads=1):
    return trace(work, work.buffers).digest(threads)


@torch.inference_mode()
def test_compiled_function_equals_the_original_and_is_loaded_the_next_time(
    compiler, said, tmp_path
):
    work, same = Work(), Work()
    run = compiler.compile('work', work, work.buffers)
    assert torch.equal(work.x, same.x) and not work.count, 'compiling leaves no trace in memory'
    for _ in range(3):
        run()
        same()
        torch.testing.assert_close(work.x, same.x, atol=1e-6, rtol=0)
    assert work.count == 3
    work.w.mul_(0.5)
    same.w.mul_(0.5)
    run()
    same()
    torch.testing.assert_close(work.x, same.x, atol=1e-6, rtol=0)
    assert (compiler.made, list(compiler.packages)) == (
        1,
        ['work'],
    ) and 'compiling work, once' in said[0]
    again, other = Compiler(say=said.append, folder=tmp_path / 'kept'), Work()
    said.clear()
    run = again.compile('work', other, other.buffers)
    run()
    assert (again.made, again.packages, said) == (0, compiler.packages, []) and other.count == 1


@pytest.mark.skipif(not Path('/proc/self/maps').exists(), reason='Linux tells what is mapped')
@torch.inference_mode()
def test_the_files_that_torch_extracts_are_removed_after_the_first_run(
    compiler, kept, tmp_path, monkeypatch
):
    temporary = tmp_path / 'temporary'
    temporary.mkdir()
    monkeypatch.setenv('TMPDIR', str(temporary))
    work, same = Work(), Work()
    run = compiler.compile('work', work, work.buffers)
    other = compiler.compile('again', same, same.buffers)
    assert len(list(temporary.iterdir())) == 2, 'CUDA reads kernels when it first launches them'
    run()
    assert len(list(temporary.iterdir())) == 1
    other()
    run()
    assert not list(temporary.iterdir())
    other()
    assert torch.equal(work.x, same.x) and (work.count, same.count) == (2, 2)
    del run, other  # torch also removes the folders
    gc.collect()


def test_a_key_tells_operations_layouts_and_threads_apart():
    class Other(Work):
        def __call__(self):
            self.x.copy_(torch.sigmoid(self.x @ self.w))

    works = Work(), Work(2 * WIDTH), Other()
    keys = {key(work) for work in works} | {key(Work(), threads=2)}
    assert len(keys) == 4 and key(Work()) == key(Work())


@pytest.mark.parametrize('lacks', ['avx512_bf16', 'amx_bf16', 'sve2'])
def test_a_key_tells_processors_apart_by_what_they_can(monkeypatch, lacks):
    flags = dict(avx2=True, cpu_name='any', l2_cache_size=1) | {lacks: True}
    keys = []
    for now in (flags, flags | {lacks: False}, flags | dict(cpu_name='other')):
        monkeypatch.setattr(torch.cpu, 'get_capabilities', lambda now=now: now)
        keys.append(key(Work()))
    assert keys[0] != keys[1] and keys[0] == keys[2]


def test_missing_compiler_means_eager_execution_with_a_reason(compiler, said, monkeypatch):
    def none(*_, **__):
        raise RuntimeError('no C++ compiler\nfound')

    monkeypatch.setattr(compiled, 'build', none)
    work = Work()
    assert compiler.compile('work', work, work.buffers) is None
    assert said[-1] == 'work is not compiled and runs eagerly: no C++ compiler'


def test_compilation_stops_after_the_first_failures(compiler, said, monkeypatch):
    tried = []

    def none(*_, **__):
        tried.append(1)
        raise RuntimeError('cannot find -lcuda')

    monkeypatch.setattr(compiled, 'build', none)
    works = [Work(width) for width in (8, 16, 24, 32)]
    assert [compiler.compile('work', work, work.buffers) for work in works] == [None] * 4
    assert len(tried) == compiled.TRIES
    assert said[-1] == 'nothing is compiled, as the first 2 could not be: cannot find -lcuda'


def test_one_failed_compilation_does_not_affect_others(compiler, monkeypatch):
    build, first = compiled.build, Work(8)
    assert compiler.compile('first', first, first.buffers) is not None
    monkeypatch.setattr(compiled, 'build', lambda *_: 1 / 0)
    for width in (16, 24, 32):
        work = Work(width)
        assert compiler.compile('work', work, work.buffers) is None
    monkeypatch.setattr(compiled, 'build', build)
    assert compiler.compile('again', first, first.buffers) is not None


def test_untraceable_function_runs_eagerly_with_a_reason(compiler, said):
    class Odd(Work):
        def __call__(self):
            raise NotImplementedError('no tracer knows it')

    work = Odd()
    assert compiler.compile('work', work, work.buffers) is None
    assert said == ['work is not compiled and runs eagerly: no tracer knows it']


@pytest.fixture(scope='module')
def package(tmp_path_factory):
    """Return the path of a package of `Work`."""
    folder, work = tmp_path_factory.mktemp('package'), Work()
    compiler = Compiler(say=lambda line: None, folder=folder)
    assert compiler.compile('work', work, work.buffers)
    return compiler.packages['work']


@pytest.fixture
def kept(package, tmp_path, monkeypatch):
    """Return the package in the folder of `compiler`; a build copies it there again."""
    folder = tmp_path / 'kept'

    def build(job, folder, threads):
        return Path(shutil.copy(package, folder))

    folder.mkdir(0o700)
    monkeypatch.setattr(compiled, 'build', build)
    return Path(shutil.copy(package, folder))


def flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def folder_in_its_place(path):
    path.unlink()
    path.mkdir()
    (path / 'file').write_text('')


def link_in_its_place(path):
    path.symlink_to(path.rename(path.parent.parent / 'elsewhere'))


DAMAGE = [
    lambda path: None,
    flipped,
    lambda path: path.write_bytes(path.read_bytes()[:-1]),
    lambda path: path.write_bytes(path.read_bytes() + b'\0'),
    lambda path: path.write_bytes(b''),
    lambda path: path.write_bytes(bytes(path.stat().st_size)),
    folder_in_its_place,
    link_in_its_place,
]


@pytest.mark.parametrize('damage', DAMAGE)
def test_a_damaged_package_is_built_again_and_a_whole_one_is_not(compiler, said, kept, damage):
    damage(kept)
    work = Work()
    run = compiler.compile('work', work, work.buffers)
    run()
    assert work.count == 1 and compiler.made == (damage is not DAMAGE[0])
    assert said[:1] == [f'{kept} is damaged and is compiled again'] * compiler.made
    assert list(kept.parent.iterdir()) == [kept] and kept.is_file() and not kept.is_symlink()


def test_a_package_of_an_earlier_version_is_replaced(compiler, kept):
    old, work = kept.with_name(f'{kept.name.split(".")[0]}.pt2'), Work()
    kept.rename(old)
    assert compiler.compile('work', work, work.buffers)
    assert list(kept.parent.iterdir()) == [kept]


def test_a_whole_package_that_cannot_be_loaded_is_removed(compiler, said, kept):
    kept.write_bytes(b'no package')
    name, work = compiled._name(kept.name.split('.')[0], kept), Work()
    kept.rename(kept.with_name(name))
    assert compiler.compile('work', work, work.buffers) is None
    assert not list(kept.parent.iterdir()) and 'runs eagerly' in said[-1]


@pytest.mark.parametrize('fails', [None, 'fsync'])
def test_a_package_is_on_the_medium_before_it_has_its_name(tmp_path, monkeypatch, package, fails):
    synced, sync = [], os.fsync

    def log(descriptor):
        synced.append(Path(os.readlink(f'/proc/self/fd/{descriptor}')))
        if fails:
            raise OSError(28, 'No space left on device')
        sync(descriptor)

    def made(program, package_path, inductor_configs):
        return shutil.copy(package, package_path)

    monkeypatch.setattr('torch._inductor.aoti_compile_and_package', made)
    monkeypatch.setattr(os, 'fsync', log)
    work, said = Work(), []
    compiler = Compiler(say=said.append, folder=tmp_path / 'kept')
    run = compiler.compile('work', work, work.buffers)
    if fails:
        assert run is None and 'No space left' in said[-1]
        assert not list((tmp_path / 'kept').iterdir())
    else:
        assert [path.suffix for path in synced] == ['.pt2', ''] and synced[1] == tmp_path / 'kept'
        assert [path.name for path in (tmp_path / 'kept').iterdir()] == [package.name]


def test_temporary_folders_of_killed_builds_are_removed(tmp_path):
    old, used, new = (tmp_path / f'tmp{name}' for name in ('old', 'used', 'new'))
    for folder in (old, used, new):
        folder.mkdir()
        (folder / 'half').write_text('')
    for folder in (old, used):
        os.utime(folder, (0, 0))
    (tmp_path / 'tmp_link').symlink_to(new)
    with storage.locked(used):
        compiled._remove_abandoned(tmp_path)
    assert not old.exists() and (used / 'half').exists() and (new / 'half').exists()


def test_the_folder_is_this_users_alone(compiler, said, kept, monkeypatch):
    folder, work = kept.parent, Work()
    folder.chmod(0o755)
    assert compiler.compile('work', work, work.buffers)
    assert folder.stat().st_mode & 0o777 == 0o700
    for mode in (0o770, 0o707, 0o777):
        folder.chmod(mode)
        assert Compiler(1, said.append, folder).compile('work', work, work.buffers) is None
        assert 'must belong to this user and be writable by no other' in said[-1]
        assert kept.exists(), 'a refused folder stays as it is'
    folder.chmod(0o700)
    user = os.geteuid()
    monkeypatch.setattr(os, 'geteuid', lambda: user + 1)
    assert Compiler(1, said.append, folder).compile('work', work, work.buffers) is None
    assert f'got user {user}' in said[-1]


def test_a_new_folder_is_private(tmp_path):
    compiled.make_private(tmp_path / 'cache' / 'embodied_kv')
    for folder in (tmp_path / 'cache', tmp_path / 'cache' / 'embodied_kv'):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_a_package_is_of_the_card_that_its_inputs_are_on(monkeypatch):
    with FakeTensorMode():
        inputs = (torch.empty(3, device='cuda:1'),)
    traced, names = Traced(fx.symbolic_trace(torch.nn.Identity()), inputs), ['one', 'other']
    monkeypatch.setattr(torch.cuda, 'get_device_name', lambda card: names[card.index])
    digests = []
    for names[:] in ['one', 'other'], ['another', 'other'], ['one', 'new']:
        digests.append(traced.digest(1))
    assert digests[0] == digests[1] != digests[2]
