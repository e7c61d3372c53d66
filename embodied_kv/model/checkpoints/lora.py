"""Low-rank adapters, folded into the weights they adapt: W + scaling * B A (Hu et al., 2021).

Adapters are read from a PEFT folder (adapter_config.json, adapter_model.safetensors) or from the
weights themselves. A pair is read together with its weight.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from embodied_kv.model.checkpoints.facts import refuse_unknown
from embodied_kv.model.files import read_json
from embodied_kv.model.keys import canonical
from embodied_kv.model.weights import CheckpointError, Weights

PEFT_CONFIG, PEFT_WEIGHTS = 'adapter_config.json', 'adapter_model.safetensors'
PAIR = re.compile(r'(?:base_model\.model\.)?(.+)\.lora_([AB])(?:\.default)?\.weight')
BASE = '.base_layer.weight'
# openpi's ranks; alpha equals the rank in both, so that the scaling is 1 (models/gemma.py).
OPENPI_RANKS = {'gemma_2b_lora': 16, 'gemma_300m_lora': 32}
# Settings of PEFT that are supported, or that only training reads.
PEFT_KNOWN = {
    *('peft_type', 'r', 'lora_alpha', 'use_rslora', 'alpha_pattern', 'rank_pattern', 'bias'),
    *('init_lora_weights', 'base_model_name_or_path', 'modules_to_save', 'target_modules'),
    *('task_type', 'auto_mapping', 'revision', 'inference_mode', 'exclude_modules'),
    'peft_version',
    *('lora_dropout', 'layers_to_transform', 'layers_pattern', 'megatron_core', 'runtime_config'),
    *('qalora_group_size', 'arrow_config', 'ensure_weight_tying'),
}
# Initialisations that do not change the base; the others (PiSSA, OLoRA, LoftQ) do.
PEFT_INITIALISATIONS = (True, False, None, 'gaussian', 'orthogonal')

Scalings = Callable[[str, int], float]  # (module, rank) -> scaling


@dataclass(frozen=True)
class Pair:
    """An adapter: the names of its two tensors in `source`, and the scaling of their product."""

    source: Weights
    a: str
    b: str
    scaling: float

    def product(self) -> Tensor:
        """Return float32 [out, in]."""
        return self.scaling * (self.source.read(self.b).float() @ self.source.read(self.a).float())


class FoldedWeights:
    """Weights with adapters added, a `WeightSource`.

    pairs: adapters by the name of the weight in `base`. replaced: complete weights in other files,
    by the same name. renamed: new name of a weight -> its name in `base`.
    """

    def __init__(
        self,
        base: Weights,
        pairs: Mapping[str, Pair],
        replaced: Mapping[str, tuple[Weights, str]],
        renamed: Mapping[str, str] | None = None,
    ) -> None:
        self.path, self._pairs = base.path, pairs
        self._places = {name: (base, name) for name in base.names} | dict(replaced)
        for name, there in (renamed or {}).items():
            self._places[name] = self._places.pop(there)
        for name, pair in pairs.items():
            rank, wide = pair.source.shape(pair.a)
            tall, same = pair.source.shape(pair.b)
            if [tall, wide] != self.shape(name) or rank != same:
                raise CheckpointError(
                    f'{pair.source.path}: {pair.b} and {pair.a} make [{tall}, {wide}] of rank '
                    f'{same} and {rank}, {name} is {self.shape(name)}'
                )

    @property
    def names(self) -> Collection[str]:
        return self._places.keys()

    def shape(self, name: str) -> list[int]:
        source, there = self._places[name]
        return source.shape(there)

    def read(self, name: str) -> Tensor:
        """Return the tensor, float32 where an adapter was folded into it."""
        source, there = self._places[name]
        tensor = source.read(there)
        return tensor.float() + self._pairs[name].product() if name in self._pairs else tensor


def has_adapters(weights: Weights) -> bool:
    return any('lora' in name.lower() for name in weights.names)


def fold_inside(weights: Weights, scalings: Scalings) -> FoldedWeights:
    """Return weights with the adapters among them folded in. Raises CheckpointError."""
    pairs, others = _pairs(weights, scalings)
    strange = sorted(name for name in others if 'lora' in name.lower())
    if strange:
        raise CheckpointError(f'{weights.path}: not supported: {strange[0]}')
    inside = {tensor for pair in pairs.values() for tensor in (pair.a, pair.b)}
    plain = Weights(weights.path, ignore=tuple(inside))
    renamed = {
        name.removesuffix(BASE) + '.weight': name for name in plain.names if name.endswith(BASE)
    }
    names = {canonical(name): name for name in (*plain.names, *renamed)}
    return FoldedWeights(plain, _matched(weights.path, pairs, names), {}, renamed)


def fold_peft(folder: Path, base: Weights) -> FoldedWeights:
    """Return the base policy with the adapter of a PEFT folder folded in."""
    path = folder / PEFT_CONFIG
    config = read_json(path)
    refuse_unknown(path, config, PEFT_KNOWN)
    wanted = {
        'peft_type': ('LORA',),
        'bias': ('none', None),
        'init_lora_weights': PEFT_INITIALISATIONS,
    }
    for name, values in wanted.items():
        if config.get(name) not in values:
            raise CheckpointError(f'{path}: not supported: {name} = {config.get(name)}')

    def scaling(module: str, rank: int) -> float:
        """Return the scaling by PEFT's `get_pattern_key`: the first pattern that matches."""
        patterns = config.get('alpha_pattern') or {}
        fitting = (a for p, a in patterns.items() if re.match(rf'(.*\.)?({p})$', module))
        alpha = next(fitting, config['lora_alpha'])
        return alpha / (rank**0.5 if config.get('use_rslora') else rank)

    adapter = Weights(folder / PEFT_WEIGHTS)
    pairs, others = _pairs(adapter, scaling)
    names = {canonical(name): name for name in base.names}
    whole = {}
    for name in others:
        there = names.get(canonical(name.removeprefix('base_model.model.')))
        if there is None or 'lora' in name.lower():
            raise CheckpointError(f'{adapter.path}: not supported: {name}')
        whole[there] = (adapter, name)
    return FoldedWeights(base, _matched(adapter.path, pairs, names), whole)


def openpi_scalings(paligemma: str, expert: str) -> Scalings:
    """Return the scalings of openpi's variants, which must be `lora` for adapted modules."""

    def scaling(module: str, rank: int) -> float:
        variant = expert if '.gemma_expert.' in module else paligemma
        if '.vision_tower.' in module or OPENPI_RANKS.get(variant) != rank:
            raise CheckpointError(
                f'{module} has an adapter of rank {rank}, its variant: {variant}'
            )
        return 1.0

    return scaling


def _pairs(weights: Weights, scalings: Scalings) -> tuple[dict[str, Pair], list[str]]:
    """Return the adapter of each module, and the names of all other tensors."""
    found: dict[str, dict[str, str]] = {}
    others = []
    for name in weights.names:
        if match := PAIR.fullmatch(name):
            found.setdefault(match[1], {})[match[2]] = name
        else:
            others.append(name)
    pairs = {}
    for module, parts in found.items():
        if parts.keys() != {'A', 'B'}:
            raise CheckpointError(f'{weights.path}: {module} has lora_{next(iter(parts))} alone')
        rank = weights.shape(parts['A'])[0]
        pairs[module] = Pair(weights, parts['A'], parts['B'], scalings(module, rank))
    return pairs, others


def _matched(path: Path, pairs: Mapping[str, Pair], names: Mapping) -> dict[str, Pair]:
    """Return the pairs by the name of the weight that they adapt."""
    matched = {}
    for module, pair in pairs.items():
        name = names.get(canonical(f'{module}.weight'))
        if name is None:
            raise CheckpointError(f'{path}: {module} has an adapter, but no weight')
        matched[name] = pair
    return matched
