"""Checkpoints of openpi: a step of its JAX training, or what its converter to PyTorch writes.

Both folders have `assets/`. The conventions of a robot (masks, joint conversion, prompt, dims of
padded statistics, for JAX the length of a chunk too) exist only in openpi's code, so the contract
must state them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_kv.config import PI05, ModelConfig, pi0
from embodied_kv.model.checkpoints import lora, statistics
from embodied_kv.model.checkpoints.checkpoint import Checkpoint
from embodied_kv.model.checkpoints.facts import Facts, find_tokenizer, refuse_unknown
from embodied_kv.model.checkpoints.openpi_jax import JaxWeights, is_jax
from embodied_kv.model.files import read_json
from embodied_kv.model.keys import canonical
from embodied_kv.model.processing import images
from embodied_kv.model.processing.aloha import DIMS as ALOHA_DIMS
from embodied_kv.model.processing.normalizer import Normalizer, Scaling
from embodied_kv.model.processing.processing import CONVERSIONS, Processing
from embodied_kv.model.processing.prompt import PromptStyle
from embodied_kv.model.weights import CheckpointError, Weights, WeightSource
from embodied_kv.robots.declared import Declared, contract_field

SLOTS = ('base_0_rgb', 'left_wrist_0_rgb', 'right_wrist_0_rgb')
VARIANTS = {
    'paligemma_variant': ('gemma_2b', 'gemma_2b_lora'),
    'action_expert_variant': ('gemma_300m', 'gemma_300m_lora'),
}
ENTRIES = {'state': 'state', 'action': 'actions'}  # of norm_stats.json
KNOWN = {'action_dim', 'action_horizon', 'precision', *VARIANTS}
STATE_TOKEN = 'state_proj.weight'  # a tensor of pi0
ASSETS = 'assets'  # folder of the statistics
TOKENIZERS = ('paligemma_tokenizer.model', 'tokenizer.model', 'tokenizer.json')
ADVICE = (
    'copy paligemma_tokenizer.model there, from $OPENPI_DATA_HOME/big_vision (by default '
    '~/.cache/openpi/big_vision) where openpi has run, or from '
    'gs://big_vision/paligemma_tokenizer.model'
)


def is_openpi(folder: Path) -> bool:
    """Return whether the folder has a config of the converter, or statistics in assets."""
    config = folder / 'config.json'
    return (config.is_file() and 'action_horizon' in read_json(config)) or bool(_stats(folder))


def describe(
    folder: Path, declared: Declared | None, config: ModelConfig | None = None
) -> Checkpoint:
    """Return the description of a folder.

    config: widths other than those of PI05. Raises CheckpointError.
    """
    settings, weights = _read(folder)
    base, facts = config or PI05, Facts(folder, declared)
    width = settings.get('action_dim', base.padded_action_dim)
    is_pi0 = any(canonical(name) == STATE_TOKEN for name in weights.names)
    if is_pi0:
        base = pi0(base, width)
    path = statistics_path(folder)
    stats = statistics.read_openpi(path)
    modes = facts.modes({}, usual='mean_std' if is_pi0 else 'quantiles')
    counts = {p: statistics.count(stats[entry], modes[p]) for p, entry in ENTRIES.items()}
    statistics.refuse_wide(str(path), 'actions', counts['action'], width, folder / 'config.json')
    names, dims = {}, {}
    for part, count in counts.items():
        # From statistics of all dims of the network, the number of the robot's dims is unknown.
        wanted, is_padded = facts.declared.dims(part), count == width
        names[part] = facts.settle(f'{part}_names', needed=is_padded and wanted is None)
        dims[part] = facts.dims(part, min(wanted or count, count) if is_padded else count)
    relative, conversion, fps = map(facts.settle, ('relative', 'conversion', 'fps'))
    in_prompt = False if is_pi0 else facts.settle('state_in_prompt')
    facts.settle('resize', images.PILLOW.name)
    facts.settle('lerobot_before_0_5', False)
    chunk_size = facts.settle('chunk_size', settings.get('action_horizon'))
    views = facts.views(SLOTS)
    facts.check()
    _check_robot(folder, dims, relative, conversion)

    state, action = (
        Scaling.openpi(
            modes[part],
            _unpadded(path, part, stats[entry], modes[part], dims[part], width),
            facts.units(part, dims[part]),
        )
        for part, entry in ENTRIES.items()
    )
    return Checkpoint(
        kind='openpi',
        path=folder,
        config=replace(
            base,
            views=views,
            chunk_size=chunk_size,
            state_dim=dims['state'],
            action_dim=dims['action'],
            padded_action_dim=width,
            action_dt=1 / fps,
            dtype='bfloat16',  # openpi always serves in it
        ),
        processing=Processing(
            Normalizer(state, action, np.array(relative, bool)),
            PromptStyle(in_prompt),
            images.PILLOW,
            CONVERSIONS[conversion],
        ),
        weights=weights,
        tokenizer_path=find_tokenizer(folder, TOKENIZERS, ADVICE),
        slots=SLOTS,
        n_action_steps=chunk_size,
        says=() if is_pi0 else None,  # pi0 was trained on actions alone
        fps=fps,
        state_names=names['state'],
        action_names=names['action'],
        padded={part: count for part, count in counts.items() if count > dims[part]},
    )


def _unpadded(
    path: Path, part: str, entries: statistics.Entries, mode: str, dims: int, width: int
) -> dict[str, NDArray[np.float64]]:
    """Return the statistics of one part, without the padding after the dims of the robot."""
    where = f'{path}: {ENTRIES[part]}'
    found = statistics.pick(where, entries, mode, (dims,), (width,))
    if not statistics.is_padding(found, mode, dims):
        raise CheckpointError(
            f'{where} must be padding after the {dims} dims of the contract (got statistics of '
            f'further numbers); correct {contract_field(f"{part}_dims")} of the contract, or use '
            'the statistics of this robot'
        )
    return {name: values[:dims] for name, values in found.items()}


def _check_robot(
    folder: Path, dims: Mapping[str, int], relative: Sequence[bool], conversion: str
) -> None:
    """Raise CheckpointError where the contract does not fit the dims."""
    if len(relative) != dims['action']:
        raise CheckpointError(
            f'{folder}: {contract_field("relative")} has {len(relative)} entries, the action has '
            f'{dims["action"]} dims'
        )
    if any(relative[dims['state'] :]):
        raise CheckpointError(
            f'{folder}: {contract_field("relative")} goes beyond the {dims["state"]} dims of the '
            'state'
        )
    if conversion == 'aloha' and {*dims.values()} != {ALOHA_DIMS}:
        raise CheckpointError(
            f'{folder}: state and action must have {ALOHA_DIMS} dims for checkpoint.conversion '
            f'aloha (got {dims["state"]} and {dims["action"]})'
        )


def _stats(folder: Path) -> list[Path]:
    return sorted(folder.glob(f'{ASSETS}/**/norm_stats.json'))


def statistics_path(folder: Path) -> Path:
    """Return the one norm_stats.json of a folder. Raises CheckpointError."""
    found = _stats(folder)
    if not found:
        raise CheckpointError(
            f'{folder} has no assets/<asset_id>/norm_stats.json: the converter only copies assets '
            'that lie next to the JAX checkpoint; copy them'
        )
    if len(found) > 1:
        names = ', '.join(str(path.relative_to(folder)) for path in found)
        raise CheckpointError(f'{folder} has the statistics of several robots: {names}; leave one')
    return found[0]


def _read(folder: Path) -> tuple[Mapping[str, Any], WeightSource]:
    """Return the settings and the weights with adapters folded in. Raises CheckpointError."""
    if is_jax(folder):  # a folder without a config
        weights = JaxWeights(folder)
        return {'action_dim': weights.action_dim}, weights
    if not (folder / 'config.json').exists():
        raise CheckpointError(
            f'{folder} must have a config.json, which the training of openpi in PyTorch does not '
            'write; write {"action_dim": 32} to it, or the action_dim of the training config'
        )
    settings = read_json(folder / 'config.json')
    refuse_unknown(folder / 'config.json', settings, KNOWN)
    return settings, _weights(folder, settings)


def _weights(folder: Path, settings: Mapping[str, str]) -> WeightSource:
    """Return the weights of PyTorch. Raises CheckpointError for adapters that were dropped."""
    weights, variants = Weights(folder), []
    for name, known in VARIANTS.items():
        variants.append(settings.get(name, known[0]))
        if variants[-1] not in known:
            raise CheckpointError(
                f'{folder}: {name} is {variants[-1]}, pi0.5 has {" or ".join(known)}'
            )
    if lora.has_adapters(weights):
        return lora.fold_inside(weights, lora.openpi_scalings(*variants))
    if adapted := [variant for variant in variants if variant.endswith('_lora')]:
        raise CheckpointError(
            f'{folder}: config.json says {adapted[0]}, but no tensor is of an adapter: the '
            'converter of openpi drops adapters; fold them into the weights before converting'
        )
    return weights
