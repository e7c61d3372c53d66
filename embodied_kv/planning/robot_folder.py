"""The memory of one robot on the disk, and the planner that plans with it.

Knows folders and parameters. Does not know ROS.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from embodied_kv.kv.budget import KvBudget
from embodied_kv.memory.encoder import Encoder
from embodied_kv.memory.prefill import Step
from embodied_kv.model.planner_checkpoint import LoadedPlanner, bundled_planner
from embodied_kv.planning.config import MIB, PlanningConfig
from embodied_kv.planning.planner_rows import PlannerRows
from embodied_kv.planning.planning import Planning


def _field(default: object, help: str, when: str = 'configure', **more: object) -> object:
    return field(default=default, metadata={'help': help, 'when': when, **more})


@dataclass(frozen=True)
class MemoryParams:
    """Where memory is kept, who plans with it, and what is remembered unasked."""

    folder: str = _field(
        '~/.ros/embodied_kv/memory',
        "Of the memory; a suite with a namespace has a folder of that name in it; '' forgets all "
        'at cleanup',
    )
    disk_mib: int = _field(
        8192,
        "Most that a robot's stored KV takes on the disk, MiB; the least recently used is removed "
        'first and computed again when a plan needs it',
        range=(1, 2**30),
    )
    planner: str = _field('', "Folder of a planner's weights and tokenizer; '' is the contract's")
    discard_foreign_kv: bool = _field(
        False,
        'Where the folder holds KV of another planner, drop that and keep the segments',
        old='renew',
    )
    encoder: str = _field(
        'hashing',
        'Of meaning: hashing, minilm, auto, or a folder of a sentence-transformers model',
    )
    step_seconds: float = _field(
        5.0, 'How long a step of the world is, s; 0: steps do not pass', range=(0.0, 1e6)
    )
    precompute: bool = _field(
        True, 'Compute missing KV before a plan asks for it', when='live', old='ahead'
    )
    task_records: int = _field(
        48, 'Tasks that are remembered, the oldest go; 0: none', range=(0, 100_000)
    )


@contextmanager
def opened(
    planner: LoadedPlanner,
    encoder: Encoder,
    params: MemoryParams,
    config: PlanningConfig,
    robot: str,
    step: Step,
    kv_budget: KvBudget | None = None,
    rows: PlannerRows | None = None,
) -> Iterator[Planning]:
    """Planning with the memory of one robot, in the folder of its namespace.

    planner, encoder: may be those of others, too. step: runs each piece of computation. kv_budget:
    whose budget it shares. rows: of the planner, where others plan beside it. Raises as
    `Planning`.
    """
    with ExitStack() as undo:
        if params.folder:
            folder = Path(params.folder).expanduser() / robot.strip('/')
        else:
            folder = Path(undo.enter_context(TemporaryDirectory()))
        renew = params.discard_foreign_kv
        planning = Planning(planner, folder, config, encoder, step, renew, kv_budget, rows)
        undo.callback(planning.close)
        planning.memory.store.limit(params.disk_mib * MIB)
        yield planning


def planner_of(folder: str, name: str) -> Path:
    """Return the folder of a planner: that one, or of the name that a contract has.

    Raises ValueError where there is neither, or where the package has no such planner.
    """
    if folder:
        return Path(folder).expanduser()
    if not name:
        raise ValueError('the contract names no planner, language: {planner: …}')
    return Path(bundled_planner(name))
