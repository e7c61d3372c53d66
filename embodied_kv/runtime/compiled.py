"""Computations compiled ahead of time: traced, compiled by inductor once, kept in a folder.

Every tensor that a computation touches is an input of the compiled code, so weights are shared and
only sizes are constants. The file name of a package depends on the trace, the device and torch, so
the package of other code is never loaded. Tracing takes seconds, so a recipe (`recipes`) names the
package of a computation that was traced before, whose results the package must then reproduce.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from embodied_kv import storage
from embodied_kv.runtime import recipes
from embodied_kv.runtime.buffer import Buffers

ABANDONED = 3600.0  # s; a temporary folder of that age without a lock is removed
TOLERANCE = 2e-2  # of the results of a package that a recipe leads to, relative and absolute
TRIES = 2  # failures before the first success after which no other computation is tried
OPTIONS = {'aot_inductor.compile_wrapper_opt_level': 'O0'}  # the wrapper only calls kernels
log = logging.getLogger(__name__)

Computation = Callable[[], object]  # over memory that never moves; it returns None


def default_folder() -> Path:
    """Return the folder of packages in the user's cache."""
    return Path(os.environ.get('XDG_CACHE_HOME') or '~/.cache').expanduser() / 'embodied_kv'


@dataclass(frozen=True, eq=False)
class Traced:
    """Operations on inputs, some of which they write in place. inputs: the present tensors."""

    module: fx.GraphModule
    inputs: tuple[Tensor, ...]

    def job(self, name: str, threads: int) -> Job:
        """Return the compile job, without the bytes of the inputs."""
        layouts = tuple(
            Layout(t.shape, recipes.strides(t), t.dtype, t.device, recipes.offset(t))
            for t in self.inputs
        )
        return Job(name, self.digest(threads), self.module, layouts)

    def digest(self, threads: int) -> str:
        """Return 32 hex digits of the operations, the inputs' layouts and the compile target."""
        layouts = map(recipes.layout, self.inputs)
        facts = [self.module.code, *layouts, *compile_target(self.inputs, threads)]
        return hashlib.blake2b('\n'.join(facts).encode(), digest_size=16).hexdigest()


def compile_target(tensors: Iterable[Tensor], threads: int) -> list[str]:
    """Return what code over these tensors is compiled for."""
    cards = {tensor.device for tensor in tensors if tensor.is_cuda}
    return [
        torch.__version__,
        torch.backends.cpu.get_cpu_capability(),
        *sorted(name for name, has in torch.cpu.get_capabilities().items() if has is True),
        *sorted(f'{card} {torch.cuda.get_device_name(card)}' for card in cards),
        str((threads, sorted(OPTIONS.items()))),
    ]


@dataclass(frozen=True)
class Layout:
    """The layout of a tensor, without its bytes. offset: as of `recipes.offset`."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    offset: int = 0

    def empty(self) -> Tensor:
        if not self.offset:
            return torch.empty_strided(
                self.shape, self.strides, dtype=self.dtype, device=self.device
            )
        last = sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))
        base = torch.empty(self.offset + last + 1, dtype=self.dtype, device=self.device)
        return base.as_strided(self.shape, self.strides, self.offset)


@dataclass(frozen=True, eq=False)
class Job:
    """A computation to compile. digest: key of its package."""

    name: str
    digest: str
    module: fx.GraphModule
    inputs: tuple[Layout, ...]


@dataclass(frozen=True, eq=False)
class Pending:
    """A computation to be traced later. tensors: all that it reaches. key: of its recipe."""

    name: str
    run: Computation
    buffers: Buffers
    tensors: Mapping[str, Tensor]
    key: str


@torch.inference_mode()
def trace(fn: Computation, buffers: Buffers) -> Traced:
    """Return the operations of `fn`, which runs once; the written `buffers` keep their bytes."""
    with buffers.preserved():
        module = make_fx(fn)()
    inputs: dict[str, Tensor] = {}
    constants = [node for node in module.graph.nodes if node.op == 'get_attr']
    first = next(iter(module.graph.nodes))
    places: dict[str, fx.Node] = {}
    for node in constants:
        name = node.target
        if name not in places:
            inputs[name] = getattr(module, name)
            with module.graph.inserting_before(first):
                places[name] = module.graph.placeholder(f'input_{len(places)}')
        node.replace_all_uses_with(places[name])
    for node in constants:
        module.graph.erase_node(node)
    for name in inputs:
        delattr(module, name)
    module.recompile()
    return Traced(module, tuple(inputs.values()))


class Compiler:
    """The compiled computations of one process, whose packages are kept in a folder.

    missing: jobs of computations without a package, if it builds none. pending: computations for
    `trace_next`, if it defers traces. packages: the loaded package of each name. made, traced:
    number of computations that it compiled and traced so far.

    threads: number of threads that the packages run on. say: receives a line for the user; the log
    by default. folder: of packages; the user's cache by default. names: of all computations to
    compile, to report progress. lower: registers the lowerings of this project's operators before
    inductor compiles. traced_form: context in which computations are traced. builds: compile what
    has no package; otherwise it is added to `missing`. defers: do not trace what has no recipe,
    which takes seconds; it is added to `pending` and runs eagerly until the next start. facts: all
    that a trace depends on except tensors; '' if unknown: each computation is traced.
    """

    def __init__(
        self,
        threads: int = 1,
        say: Callable[[str], object] | None = None,
        folder: Path | None = None,
        names: Sequence[str] = (),
        lower: Callable[[], object] = lambda: None,
        traced_form: Callable[[], AbstractContextManager[object]] = nullcontext,
        builds: bool = True,
        facts: str = '',
        defers: bool = False,
    ) -> None:
        self.missing: list[Job] = []
        self.pending: list[Pending] = []
        self.threads, self.lower = threads, lower
        self._builds, self._defers = builds, defers
        self._traced_form = traced_form
        self.made, self.traced, self.names, self._facts = 0, 0, tuple(names), facts
        self.packages: dict[str, Path] = {}
        self._failed = 0
        self._say = say or log.info
        self.folder = folder or default_folder()

    def compile(self, name: str, fn: Computation, buffers: Buffers) -> Computation | None:
        """Return the compiled computation; None if it fails (with a line), is missing or pending.

        If the first `TRIES` computations fail, no other one is tried. buffers: all that it writes.
        """
        if self._failed >= TRIES and not self.packages:
            return None
        path = None
        try:
            make_private(self.folder)
            with self._traced_form():
                known, mark = self._reachable_tensors(name, fn, buffers)
                if mark and (loaded := self._load_by_recipe(name, mark, known, fn, buffers)):
                    return loaded
                wanted = Pending(name, fn, buffers, known, mark)
                if mark and self._defers:
                    self.pending.append(wanted)
                    return None
                traced, job = self._trace(wanted)
            path = find_package(self.folder, job.digest, self._say)
            if path is None and not self._builds:
                self.missing.append(job)
                return None
            if path is None:
                path = self._build(job)
            loader, extracted = _load(path)
        except Exception as error:  # a tracer, a compiler or a disk may raise anything
            if path is not None:
                path.unlink(missing_ok=True)
            reason = reason_of(error)
            self._say(f'{name} is not compiled and runs eagerly: {reason}')
            self._failed += 1
            if self._failed == TRIES and not self.packages:
                self._say(f'nothing is compiled, as the first {TRIES} could not be: {reason}')
            return None
        self.packages[name] = path
        return _bind_inputs(loader, extracted, traced.inputs)

    def trace_next(self) -> None:
        """Trace the oldest pending computation, and add it to `missing` unless it has a package.

        The next start loads the package. The inputs must be bound to no row.
        """
        wanted = self.pending.pop(0)
        try:
            with self._traced_form():
                _, job = self._trace(wanted)
            if find_package(self.folder, job.digest, self._say) is None:
                self.missing.append(job)
        except Exception as error:  # a tracer or a disk may raise anything
            self._say(f'{wanted.name} is not compiled and runs eagerly: {reason_of(error)}')

    def _trace(self, wanted: Pending) -> tuple[Traced, Job]:
        """Return the trace of a computation and its compile job, and write its recipe."""
        traced = trace(wanted.run, wanted.buffers)
        self.traced += 1
        job = traced.job(wanted.name, self.threads)
        paths = recipes.paths_of(traced.inputs, wanted.tensors) if wanted.key else None
        if paths is not None:
            recipes.write(self.folder, wanted.key, job.digest, paths)
        return traced, job

    @torch.inference_mode()
    def _reachable_tensors(
        self, name: str, fn: Computation, buffers: Buffers
    ) -> tuple[Mapping[str, Tensor], str]:
        """Return all tensors that `fn` reaches, and the key of its recipe; '' for no recipe."""
        if not self._facts:
            return {}, ''
        with buffers.preserved():
            fn()  # the first run of a module may create tensors that it keeps
        known = recipes.named_tensors(fn)
        facts = '\n'.join([self._facts, *compile_target(known.values(), self.threads)])
        return known, recipes.key(name, facts, known)

    def _load_by_recipe(
        self,
        name: str,
        mark: str,
        known: Mapping[str, Tensor],
        fn: Computation,
        buffers: Buffers,
    ) -> Computation | None:
        """Return the package that a recipe leads to; None without one with equal results."""
        recipe = recipes.read(self.folder, mark)
        if recipe is None:
            return None
        digest, paths = recipe
        path = find_package(self.folder, digest, self._say)
        if path is None or not known.keys() >= set(paths):
            return None
        try:
            run = _bind_inputs(*_load(path), [known[inner] for inner in paths])
            if have_equal_results(fn, run, buffers):
                self.packages[name] = path
                return run
            reason = 'its results differ'
        except Exception as error:  # a package that does not fit may raise anything
            reason = reason_of(error)
        self._say(f'{name} is traced again, because a kept package does not fit: {reason}')
        return None

    def _build(self, job: Job) -> Path:
        self._say(f'compiling {job.name}{self._place(job.name)}, once: about half a minute')
        began = time.monotonic()
        self.lower()
        path = build(job, self.folder, self.threads)
        self._say(f'compiled {job.name} in {time.monotonic() - began:.0f} s: {path}')
        self.made += 1
        return path

    def _place(self, name: str) -> str:
        """Return the progress, as ', 3 of 12'; '' if the number of computations is unknown."""
        if name not in self.names:
            return ''
        return f', {self.names.index(name) + 1} of {len(self.names)}'


def _bind_inputs(
    loader: torch._C._aoti.AOTIModelPackageLoader, extracted: set[Path], inputs: Sequence[Tensor]
) -> Computation:
    def run() -> None:
        loader.boxed_run(list(inputs))
        while extracted:  # every kernel of the package is loaded now
            shutil.rmtree(extracted.pop(), ignore_errors=True)

    return run


@torch.inference_mode()
def have_equal_results(fn: Computation, other: Computation, buffers: Buffers) -> bool:
    """Return whether two computations write the same up to rounding; buffers keep their bytes.

    It detects exchanged weights, and permits differences in rounding.
    """
    written = []
    for work in (fn, other):
        with buffers.preserved():
            work()
            written.append([buffer.tensor.clone() for buffer in buffers])
    return all(
        torch.allclose(a, b, TOLERANCE, TOLERANCE, equal_nan=True)
        if a.is_floating_point()
        else torch.equal(a, b)
        for a, b in zip(*written, strict=True)
    )


def find_package(
    folder: Path, digest: str, say: Callable[[str], object] = log.info
) -> Path | None:
    """Return the complete package of a digest; remove each damaged one."""
    for path in sorted(folder.glob(f'{digest}*.pt2')):
        if path.name == _name(digest, path):
            return path
        say(f'{path} is damaged and is compiled again')
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return None


def reason_of(error: Exception) -> str:
    """Return the first line of an error, for a user."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def make_private(folder: Path) -> None:
    """Create the folder, or close it to other users. Raises PermissionError if they may write."""
    if not folder.exists():
        storage.private_folder(folder)
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(
            f'{folder} must belong to this user and be writable by no other (got user '
            f'{status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o}); remove it, or set '
            'XDG_CACHE_HOME to a folder of this user'
        )
    if status.st_mode & storage.OTHERS:
        folder.chmod(0o700)


def _load(path: Path) -> tuple[torch._C._aoti.AOTIModelPackageLoader, set[Path]]:
    """Return the loader of a package, whose `boxed_run` computes, and the folders it extracted.

    torch removes these folders when it deletes the loader, which may not happen at the end of a
    process. `torch._inductor.aoti_load_package` would also unpickle exported programs of a foreign
    package.
    """
    digest = path.name.partition('.')[0]
    before = _extracted(digest)
    loader = torch._C._aoti.AOTIModelPackageLoader(str(path), 'model', True, 1, -1)
    return loader, _extracted(digest) - before


def _extracted(digest: str) -> set[Path]:
    """Return the folders of a package's libraries that this process has mapped; Linux only."""
    try:
        maps = Path('/proc/self/maps').read_text()
    except OSError:
        return set()
    of_digest = rf'(/\S*/aotinductor_\w+)/{digest}/\S+\.so$'
    return {Path(found) for found in re.findall(of_digest, maps, re.MULTILINE)}


def _name(digest: str, path: Path) -> str:
    """Return the name of a package with the content of a file; '' if it cannot be read."""
    try:
        with open(storage.open_regular(path), 'rb') as stream:
            checksum = hashlib.blake2b(stream.read(), digest_size=8).hexdigest()
    except (OSError, storage.IrregularFileError):
        return ''
    return f'{digest}.{checksum}.pt2'


def _remove_abandoned(folder: Path) -> None:
    """Remove temporary folders of builds that were killed. A build locks its own."""
    for path in folder.glob('tmp*'):
        with suppress(OSError), storage.locked(path, wait=False) as is_ours:
            if is_ours and time.time() - path.stat().st_mtime > ABANDONED:
                shutil.rmtree(path)


@torch.inference_mode(False)
def build(job: Job, folder: Path, threads: int) -> Path:
    """Return the package of a job, written completely or not at all, and synced to the medium."""
    _remove_abandoned(folder)
    with FakeTensorMode():
        inputs = tuple(layout.empty() for layout in job.inputs)
    with (
        tempfile.TemporaryDirectory(dir=folder) as temporary,
        storage.locked(Path(temporary)),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter('ignore')  # torch's own, about itself
        program = torch.export.export(job.module, inputs)
        made = torch._inductor.aoti_compile_and_package(
            program,
            package_path=f'{temporary}/{job.digest}.pt2',
            inductor_configs=OPTIONS | {'cpp.threads': threads},
        )
        storage.sync(Path(made))
        path = folder / _name(job.digest, Path(made))
        os.replace(made, path)
    storage.sync(folder)
    return path
