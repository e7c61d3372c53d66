"""Weights of openpi's JAX checkpoints, under the names of openpi in PyTorch.

A leaf of the tree holds one kind of matrix of all layers. Low-rank adapters are added in float32,
as openpi computes them (models/lora.py, models/gemma.py); the alpha of its variants equals their
rank, so that the scaling is 1.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from embodied_kv.model.checkpoints.lora import OPENPI_RANKS
from embodied_kv.model.checkpoints.orbax import AGAIN, Leaves
from embodied_kv.model.files import CheckpointError
from embodied_kv.model.keys import EXPERT, PALIGEMMA, PREFIXES

LOG = logging.getLogger(__name__)
ACTION_IN = 'action_in_proj.weight'
PARAMS = 'params'  # folder of the weights in a step folder
HALF = re.compile(r'(.+)(/|_)lora_([ab])')  # a leaf of an adapter
# openpi's second product of this adapter sums over the heads again, as its first one does.
SUMS_HEADS = re.compile(r'.*/attn_vec_einsum(_1)?/w')

Reorder = Callable[[Tensor], Tensor]


def _same(x: Tensor) -> Tensor:
    return x


def _transposed(x: Tensor) -> Tensor:
    """Return [out, in] of a kernel [in, out]."""
    return x.mT


def _flat(x: Tensor) -> Tensor:
    """Return [heads * head_dim] of a bias [heads, head_dim]."""
    return x.flatten()


def _to_heads(x: Tensor) -> Tensor:
    """Return [heads * head_dim, width] of a projection [heads, width, head_dim]."""
    return x.mT.flatten(0, 1)


def _from_heads(x: Tensor) -> Tensor:
    """Return [width, heads * head_dim] of a projection [heads, head_dim, width]."""
    return x.flatten(0, 1).mT


def _kernel_to_heads(x: Tensor) -> Tensor:
    """Return [heads * head_dim, width] of a kernel [width, heads, head_dim]."""
    return x.flatten(1).mT


def _convolution(x: Tensor) -> Tensor:
    """Return [out, in, height, width] of a kernel [height, width, in, out]."""
    return x.permute(3, 2, 0, 1)


@dataclass(frozen=True)
class Piece:
    """A tensor in a leaf. at: its index in the leading axes, after that of the layer."""

    name: str
    reorder: Reorder = _same
    at: tuple[int, ...] = ()


VISION, TEXT = PREFIXES['vision.tower.'], PREFIXES['backbone.']
PROJECTOR, EXPERT_NORM = PREFIXES['vision.projector.'], f'{EXPERT}norm.'
# Leaf: the tensor in it.
SINGLE = {
    'PaliGemma/img/embedding/kernel': Piece(
        f'{VISION}embeddings.patch_embedding.weight', _convolution
    ),
    'PaliGemma/img/embedding/bias': Piece(f'{VISION}embeddings.patch_embedding.bias'),
    'PaliGemma/img/pos_embedding': Piece(f'{VISION}embeddings.position_embedding.weight', at=(0,)),
    'PaliGemma/img/Transformer/encoder_norm/scale': Piece(f'{VISION}post_layernorm.weight'),
    'PaliGemma/img/Transformer/encoder_norm/bias': Piece(f'{VISION}post_layernorm.bias'),
    'PaliGemma/img/head/kernel': Piece(f'{PROJECTOR}weight', _transposed),
    'PaliGemma/img/head/bias': Piece(f'{PROJECTOR}bias'),
    'PaliGemma/llm/embedder/input_embedding': Piece(f'{PALIGEMMA}lm_head.weight'),
    'PaliGemma/llm/final_norm/scale': Piece(f'{TEXT}norm.weight'),
    'PaliGemma/llm/final_norm_1/scale': Piece(f'{EXPERT_NORM}weight'),
    'PaliGemma/llm/final_norm_1/Dense_0/kernel': Piece(f'{EXPERT_NORM}dense.weight', _transposed),
    'PaliGemma/llm/final_norm_1/Dense_0/bias': Piece(f'{EXPERT_NORM}dense.bias'),
}
HEAD = re.compile(r'(\w+)/(kernel|bias)')  # a projection outside PaliGemma
ATTENTION = 'MultiHeadDotProductAttention_0'
# Leaf below the blocks of the tower: the tensors in it, below a layer.
BLOCKS = 'PaliGemma/img/Transformer/encoderblock/'
BLOCK: dict[str, tuple[Piece, ...]] = {
    **{
        f'LayerNorm_{i}/{theirs}': (Piece(f'layer_norm{i + 1}.{ours}'),)
        for i in (0, 1)
        for theirs, ours in (('scale', 'weight'), ('bias', 'bias'))
    },
    **{
        f'{ATTENTION}/{theirs}/{kind}': (Piece(f'self_attn.{ours}_proj.{tensor}', reorder),)
        for theirs, ours in (('query', 'q'), ('key', 'k'), ('value', 'v'))
        for kind, tensor, reorder in (
            ('kernel', 'weight', _kernel_to_heads),
            ('bias', 'bias', _flat),
        )
    },
    f'{ATTENTION}/out/kernel': (Piece('self_attn.out_proj.weight', _from_heads),),
    f'{ATTENTION}/out/bias': (Piece('self_attn.out_proj.bias'),),
    **{
        f'MlpBlock_0/Dense_{i}/{kind}': (Piece(f'mlp.fc{i + 1}.{tensor}', reorder),)
        for i in (0, 1)
        for kind, tensor, reorder in (('kernel', 'weight', _transposed), ('bias', 'bias', _same))
    },
}
# Leaf below the layers of the language model, where {} is '' or, for the action expert, '_1'.
LAYERS = 'PaliGemma/llm/layers/'
LAYER = {
    'attn/q_einsum{}/w': (Piece('self_attn.q_proj.weight', _to_heads),),
    'attn/kv_einsum{}/w': (
        Piece('self_attn.k_proj.weight', _to_heads, (0,)),
        Piece('self_attn.v_proj.weight', _to_heads, (1,)),
    ),
    'attn/qkv_einsum{}/w': (
        Piece('self_attn.q_proj.weight', _to_heads, (0,)),
        Piece('self_attn.k_proj.weight', _to_heads, (1,)),
        Piece('self_attn.v_proj.weight', _to_heads, (2,)),
    ),
    'attn/attn_vec_einsum{}/w': (Piece('self_attn.o_proj.weight', _from_heads),),
    'mlp{}/gating_einsum': (
        Piece('mlp.gate_proj.weight', _transposed, (0,)),
        Piece('mlp.up_proj.weight', _transposed, (1,)),
    ),
    'mlp{}/linear': (Piece('mlp.down_proj.weight', _transposed),),
    **{
        f'{theirs}{{}}/{leaf}': (Piece(f'{ours}.{tensor}', reorder),)
        for theirs, ours in (
            ('pre_attention_norm', 'input_layernorm'),
            ('pre_ffw_norm', 'post_attention_layernorm'),
        )
        for leaf, tensor, reorder in (
            ('scale', 'weight', _same),
            ('Dense_0/kernel', 'dense.weight', _transposed),
            ('Dense_0/bias', 'dense.bias', _same),
        )
    },
}


def is_jax(folder: Path) -> bool:
    """Return whether a folder is a step of openpi's JAX training; openpi decides the same way."""
    return (folder / PARAMS).is_dir() and not (folder / 'model.safetensors').exists()


class JaxWeights:
    """The weights of a step folder, a `WeightSource`.

    `names` has the tensors of a leaf one after another, so that a reader in this order reads each
    leaf once. Raises CheckpointError; for a damaged leaf only when it is read.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / PARAMS
        self._leaves = Leaves(self.path)
        self._adapters: dict[str, dict[str, str]] = {}  # leaf -> half 'a' or 'b' -> its leaf
        self._pieces: dict[str, tuple[str, Piece]] = {}
        self._last: tuple[str, Tensor] | None = None
        for leaf in self._leaves.names:
            if half := HALF.fullmatch(leaf):
                adapted = half[1] + ('/w' if half[2] == '/' else '')
                self._adapters.setdefault(adapted, {})[half[3]] = leaf
            else:
                self._pieces |= {piece.name: (leaf, piece) for piece in self._found_in(leaf)}
        ranks = {self._check_adapter(*adapter) for adapter in self._adapters.items()}
        if odd := ranks - {*OPENPI_RANKS.values()}:
            LOG.warning(
                f'{self.path}: adapters of rank {", ".join(map(str, sorted(odd)))} are added with '
                'a scaling of 1, because the files do not state alpha; do not arm the arm if '
                "alpha differs from the rank in this policy's train config"
            )

    @property
    def names(self) -> Collection[str]:
        return self._pieces.keys()

    @property
    def unknown(self) -> list[str]:
        """Return the leaves that are no part of pi0 or pi0.5."""
        return [name for name in self.names if '/' in name]

    @property
    def action_dim(self) -> int:
        """Return the dims of an action of the network."""
        if ACTION_IN not in self._pieces:
            raise CheckpointError(f'{self.path}: missing: {ACTION_IN}')
        return self.shape(ACTION_IN)[-1]

    def shape(self, name: str) -> list[int]:
        """Return the shape in PyTorch."""
        leaf, piece = self._pieces[name]
        shape = self._leaves.shape(leaf)
        try:
            one = torch.empty(shape, device='meta')[piece.at]
            return list(piece.reorder(one).shape)
        except (RuntimeError, IndexError) as error:
            raise CheckpointError(
                f'{self.path}: {leaf} must have other axes (got {list(shape)}); use a checkpoint '
                'of pi0 or pi0.5'
            ) from error

    def read(self, name: str) -> Tensor:
        """Return the tensor in the dtype of its leaf, float32 where an adapter is added."""
        leaf, piece = self._pieces[name]
        if self._last is None or self._last[0] != leaf:
            self._last = None  # freed before the next read: a leaf may have gigabytes
            self._last = leaf, self._leaves.read(leaf)
        value = self._last[1][piece.at]
        if leaf in self._adapters:
            a, b = (self._leaves.read(self._adapters[leaf][half])[piece.at] for half in 'ab')
            value = value.float() + _product(a.float(), b.float(), leaf)
        return piece.reorder(value).contiguous()

    def _check_adapter(self, adapted: str, halves: Mapping[str, str]) -> int:
        """Return the rank of an adapter. Raises CheckpointError for one that does not fit."""
        first = next(iter(halves.values()))
        if adapted not in self._leaves.names or len(halves) < 2:
            raise CheckpointError(
                f'{self.path}: {first} must have its other half and {adapted}; {AGAIN}'
            )
        shape = self._leaves.shape(adapted)
        a, b = (torch.empty(self._leaves.shape(halves[half]), device='meta') for half in 'ab')
        try:
            made = torch.broadcast_shapes(_product(a, b, adapted).shape, shape)
        except RuntimeError:
            made = ()
        if made != shape:
            raise CheckpointError(
                f'{self.path}: {first} must fit {adapted}, {list(shape)} (got {list(a.shape)} and '
                f'{list(b.shape)}); {AGAIN}'
            )
        return a.shape[-1]

    def _found_in(self, leaf: str) -> Iterator[Piece]:
        """Yield the tensors of a leaf; an unknown leaf is one tensor with its name."""
        if leaf in SINGLE:
            yield SINGLE[leaf]
        elif (head := HEAD.fullmatch(leaf)) is not None:
            kind = 'weight' if head[2] == 'kernel' else 'bias'
            yield Piece(f'{head[1]}.{kind}', _transposed if kind == 'weight' else _same)
        elif (below := _below_layers(leaf)) is not None:
            prefix, pieces = below
            for layer in range(self._leaves.shape(leaf)[0]):
                for piece in pieces:
                    name = f'{prefix}layers.{layer}.{piece.name}'
                    yield Piece(name, piece.reorder, (layer, *piece.at))
        else:
            yield Piece(leaf)


def _below_layers(leaf: str) -> tuple[str, tuple[Piece, ...]] | None:
    """Return the prefix in PyTorch and the tensors of a leaf of all layers; None for others."""
    if leaf.startswith(BLOCKS) and (pieces := BLOCK.get(leaf.removeprefix(BLOCKS))):
        return f'{VISION}encoder.', pieces
    if not leaf.startswith(LAYERS):
        return None
    below = leaf.removeprefix(LAYERS)
    for prefix, suffix in ((TEXT, ''), (EXPERT, '_1')):
        for pattern, pieces in LAYER.items():
            if below == pattern.format(suffix):
                return prefix, pieces
    return None


def _product(a: Tensor, b: Tensor, leaf: str) -> Tensor:
    """Return what an adapter adds to its leaf, of halves [..., in, rank] and [..., rank, out]."""
    return a @ (b.sum(-3, keepdim=True) if SUMS_HEADS.fullmatch(leaf) else b)
