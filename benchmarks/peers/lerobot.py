"""The import of a model of LeRobot from a checkout of its source.

Only the files of the model are run. Stand-ins replace what they import for training, files and the
hub (`STAND_INS`), so neither LeRobot's other dependencies nor its version of Python is needed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.common.command import BenchmarkError

REPOSITORY = 'https://github.com/huggingface/lerobot'
STEPS = 10  # Euler steps of a chunk
TRIED = '7427f31801f944f5ec9ce53cda02862ce7d1638b'
# Packages of which single modules are imported: their __init__ would import the rest of LeRobot.
BARE = (
    *('lerobot', 'lerobot.configs', 'lerobot.policies', 'lerobot.policies.pi05'),
    *('lerobot.policies.rtc', 'lerobot.policies.smolvla', 'lerobot.utils'),
)
# Names that the model's files import and that the model does not use, or uses as true.
STAND_INS = {
    'lerobot.configs': ('PreTrainedConfig',),
    'lerobot.optim': ('AdamWConfig', 'CosineDecayWithWarmupSchedulerConfig'),
    'lerobot.policies.pretrained': ('PreTrainedPolicy', 'T'),
    'lerobot.policies.utils': ('populate_queues',),
    'lerobot.utils.import_utils': ('_transformers_available', 'require_package'),
}


class StandIn:
    """A class that is only inherited from, or a function whose result is not read."""

    def __init__(self, *_: object, **__: object) -> None:
        """Ignore all arguments."""

    @classmethod
    def register_subclass(cls, name: str) -> Callable[[type], type]:
        return lambda registered: registered

    def __post_init__(self) -> None:
        """Nothing to check."""


def source(path: Path | None, model: str) -> Path:
    """Return the folder of LeRobot's package in a checkout. model: the module that it must have.

    Raises BenchmarkError.
    """
    if path is None:
        raise BenchmarkError(
            'give a checkout of LeRobot with --lerobot PATH, for example after: '
            f'git clone {REPOSITORY} && git -C lerobot checkout {TRIED} (the one that was tried)'
        )
    package = path / 'src' / 'lerobot'
    if not package.joinpath(*model.split('.')[1:]).with_suffix('.py').is_file():
        raise BenchmarkError(
            f'{path} is no checkout of LeRobot with {model}: {package} has no such model'
        )
    return package


@contextmanager
def imported(package: Path, model: str) -> Iterator[ModuleType]:
    """Yield the module of the model, then unload LeRobot's modules. Raises BenchmarkError."""
    before = {name: sys.modules.pop(name) for name in _present()}
    try:
        yield _import(package, model)
    finally:
        for name in _present():
            del sys.modules[name]
        sys.modules.update(before)


def _present() -> list[str]:
    return [name for name in sys.modules if name.split('.')[0] == 'lerobot']


def _import(package: Path, model: str) -> ModuleType:
    for name in BARE:
        module = sys.modules[name] = ModuleType(name)
        module.__path__ = [str(package.joinpath(*name.split('.')[1:]))]
    try:
        types = import_module('lerobot.configs.types')
        vars(sys.modules['lerobot.configs']).update(_public(types))
        for name, missing in STAND_INS.items():
            module = sys.modules.setdefault(name, ModuleType(name))
            vars(module).update(dict.fromkeys(missing, StandIn))
        return import_module(model)
    except Exception as error:  # another version of LeRobot may raise anything
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise BenchmarkError(
            f'the model in {package} cannot be imported ({reason[0]}): that of {TRIED} can'
        ) from error


def _public(module: ModuleType) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if not name.startswith('_')}
