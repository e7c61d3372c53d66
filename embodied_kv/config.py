"""The dimensions of the models, and their presets."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace

DTYPES = {'float32': 4, 'bfloat16': 2}  # bytes of a number of weights and KV


@dataclass(frozen=True)
class VisionConfig:
    """A SigLIP tower; `merge` x `merge` adjacent patches become one token (1 in pi0.5).

    projector_bias: whether the linear layer to the width of the backbone has a bias.
    """

    image_size: int
    patch_size: int
    width: int
    layers: int
    heads: int
    mlp: int
    merge: int = 1
    eps: float = 1e-6
    projector_bias: bool = True

    @property
    def patches(self) -> int:
        return (self.image_size // self.patch_size) ** 2

    @property
    def tokens(self) -> int:
        """Return the tokens that one image adds to the prefix."""
        return self.patches // self.merge**2


@dataclass(frozen=True)
class BackboneConfig:
    """The language backbone, whose KV is shared.

    kind: 'gemma' (norms scale by 1 + weight, GELU, tied head) or 'llama' (norms scale by weight,
    SiLU, a separate head unless `shares_head`). qkv_bias: queries, keys and values have a bias
    (Qwen 2). qk_norm: a norm of each head of queries and keys (Qwen 3, Gemma 3). branch_norms: a
    norm behind attention and behind the feed-forward (Gemma 3). scales_tokens: embeddings are
    scaled by sqrt(width). rope_scaling: (factor,), or (factor, low, high, tokens) of Llama 3; see
    `model.layers.wavelengths`. local_layers: layers that rotate by `local_theta`, unscaled.
    """

    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab_size: int
    rope_theta: float = 10_000.0
    eps: float = 1e-6
    kind: str = 'gemma'
    shares_head: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    branch_norms: bool = False
    scales_tokens: bool = True
    rope_scaling: tuple[float, ...] = ()
    local_layers: tuple[int, ...] = ()
    local_theta: float = 10_000.0

    @property
    def has_own_head(self) -> bool:
        return self.kind == 'llama' and not self.shares_head


@dataclass(frozen=True)
class ExpertConfig:
    """The action expert.

    Layers, heads and head_dim are those of the backbone: layer i reads the KV of its layer i.
    time: where the flow time enters, 'norms' (adaptive norms, pi0.5) or 'input' (an MLP over
    action and time, pi0). every: a backbone layer has an expert layer if its index is a multiple
    of this. self_every: such a layer attends to the suffix too if its index is a multiple of this;
    the others (in SmolVLA) only read keys and values that they project from the prefix. 0: no
    layer attends to the suffix. is_causal: an action does not see later ones.
    """

    width: int
    mlp: int
    time_min_period: float = 4e-3
    time_max_period: float = 4.0
    time: str = 'norms'
    every: int = 1
    self_every: int = 1
    is_causal: bool = False


@dataclass(frozen=True)
class ModelConfig:
    """A model of the class of pi0, pi0.5 and SmolVLA.

    action_dim, padded_action_dim: numbers of an action of the robot, and of the network. dtype: in
    a preset, that of a device which supports it; `model.dtype.served` returns the configuration
    for a machine. state_width: numbers of the state token, which follows the prompt in the prefix;
    0 where the prompt contains the state (pi0.5). state_reader: what computes that token, 'expert'
    (pi0) or 'backbone' (SmolVLA). scales_images: tokens of images are scaled by sqrt(width), as
    those of text are. frame: ids of the tokens before each image, of which the first also follows
    it; () for none. empty_views: absent views that leave a frame, at most. view_slots: all views.
    """

    name: str
    vision: VisionConfig
    backbone: BackboneConfig
    expert: ExpertConfig
    views: tuple[str, ...]
    max_text: int
    chunk_size: int
    state_dim: int
    action_dim: int
    padded_action_dim: int = 32
    action_dt: float = 0.1
    dtype: str = 'float32'
    state_width: int = 0
    state_reader: str = 'expert'
    scales_images: bool = False
    frame: tuple[int, ...] = ()
    empty_views: int = 0
    view_slots: int = 0

    def __post_init__(self) -> None:
        if self.state_dim > self.state_width > 0:
            raise ValueError(
                f'state_dim must be <= state_width {self.state_width} (got {self.state_dim})'
            )
        if (self.expert.time == 'input') != bool(self.state_width):
            raise ValueError(
                'state_width must be > 0 for an expert with the time in its input, and 0 for '
                f'adaptive norms (got {self.state_width} for {self.expert.time!r})'
            )
        if self.action_dim > self.padded_action_dim:
            raise ValueError(
                f'action_dim must be <= padded_action_dim {self.padded_action_dim} (got '
                f'{self.action_dim})'
            )
        if self.backbone.heads % self.backbone.kv_heads:
            raise ValueError(
                f'heads must be a multiple of kv_heads {self.backbone.kv_heads} (got '
                f'{self.backbone.heads})'
            )

    @property
    def prefix_tokens(self) -> int:
        """Return the length of the longest prefix, with all views, full text and state token."""
        framed = self.frame_tokens * (len(self.views) + self.empty_views)
        return len(self.views) * self.vision.tokens + framed + self.max_text + self.state_tokens

    @property
    def frame_tokens(self) -> int:
        """Return the number of tokens around a picture."""
        return len(self.frame) + bool(self.frame)

    @property
    def cross_layers(self) -> tuple[int, ...]:
        """Return the backbone layers whose keys and values the expert projects."""
        e = self.expert
        layers = range(0, self.backbone.layers, e.every)
        return tuple(i for i in layers if not e.self_every or i % e.self_every)

    @property
    def kv_layers(self) -> int:
        """Return the layers of a row: those of the backbone, then the projected ones."""
        return self.backbone.layers + len(self.cross_layers)

    @property
    def state_tokens(self) -> int:
        """Return the number of state tokens at the end of a prefix: 0 or 1."""
        return int(self.state_width > 0)

    @property
    def kv_bytes_per_token(self) -> int:
        b = self.backbone
        return 2 * self.kv_layers * b.kv_heads * b.head_dim * DTYPES[self.dtype]

    @property
    def digest(self) -> str:
        """Return 16 hex digits that change with any dimension."""
        return hashlib.sha256(repr(asdict(self)).encode()).hexdigest()[:16]


PI05 = ModelConfig(
    name='pi05',
    vision=VisionConfig(image_size=224, patch_size=14, width=1152, layers=27, heads=16, mlp=4304),
    backbone=BackboneConfig(
        width=2048, layers=18, heads=8, kv_heads=1, head_dim=256, mlp=16384, vocab_size=257152
    ),
    expert=ExpertConfig(width=1024, mlp=4096),
    views=('base', 'left_wrist', 'right_wrist'),
    max_text=200,
    chunk_size=50,
    state_dim=32,
    action_dim=32,
    action_dt=0.02,
    dtype='bfloat16',
)


def pi0(base: ModelConfig, state_width: int, max_text: int = 48) -> ModelConfig:
    """Return a pi0.5 model changed to pi0: a state token, and the time in the expert's input."""
    expert = replace(base.expert, time='input')
    return replace(base, expert=expert, max_text=max_text, state_width=state_width)


PI0 = replace(pi0(PI05, PI05.padded_action_dim), name='pi0')

SMOLVLA = ModelConfig(
    name='smolvla',
    vision=VisionConfig(
        image_size=512,
        patch_size=16,
        width=768,
        layers=12,
        heads=12,
        mlp=3072,
        merge=4,
        projector_bias=False,
    ),
    backbone=BackboneConfig(
        width=960,
        layers=16,
        heads=15,
        kv_heads=5,
        head_dim=64,
        mlp=2560,
        vocab_size=49280,
        eps=1e-5,
        kind='llama',
    ),
    expert=ExpertConfig(width=720, mlp=2048, time='input', self_every=2, is_causal=True),
    views=('camera1', 'camera2', 'camera3'),
    max_text=48,
    chunk_size=50,
    state_dim=6,
    action_dim=6,
    action_dt=1 / 30,
    dtype='bfloat16',
    state_width=32,
    state_reader='backbone',
    scales_images=True,
)

PI05_SMALL = ModelConfig(
    name='pi05_small',
    vision=VisionConfig(image_size=224, patch_size=14, width=384, layers=12, heads=6, mlp=1536),
    backbone=BackboneConfig(
        width=640, layers=10, heads=8, kv_heads=1, head_dim=80, mlp=2560, vocab_size=8192
    ),
    expert=ExpertConfig(width=320, mlp=1280),
    views=('base', 'wrist'),
    max_text=48,
    chunk_size=10,
    state_dim=7,
    action_dim=7,
    dtype='bfloat16',
)

TABLETOP = ModelConfig(
    name='tabletop',
    vision=VisionConfig(
        image_size=64, patch_size=8, width=128, layers=3, heads=4, mlp=512, merge=2
    ),
    backbone=BackboneConfig(
        width=192, layers=6, heads=4, kv_heads=1, head_dim=48, mlp=512, vocab_size=768
    ),
    expert=ExpertConfig(width=128, mlp=256),
    views=('front', 'wrist'),
    max_text=96,
    chunk_size=10,
    state_dim=7,
    action_dim=7,
    padded_action_dim=7,
)

# High-resolution tabletop: its prefixes are long enough to be compressed to a tenth.
TABLETOP_LONG = replace(
    TABLETOP, name='tabletop_long', vision=replace(TABLETOP.vision, image_size=128, merge=1)
)

TABLETOP_SMALL = replace(  # for one task; trained within an hour on one core
    TABLETOP,
    name='tabletop_small',
    backbone=replace(TABLETOP.backbone, width=128, layers=4, head_dim=32, mlp=384),
    expert=ExpertConfig(width=96, mlp=192),
)

TINY = ModelConfig(
    name='tiny',
    vision=VisionConfig(image_size=28, patch_size=14, width=32, layers=1, heads=2, mlp=64),
    backbone=BackboneConfig(
        width=64, layers=2, heads=4, kv_heads=1, head_dim=16, mlp=128, vocab_size=320
    ),
    expert=ExpertConfig(width=32, mlp=64),
    views=('front', 'wrist'),
    max_text=64,
    chunk_size=6,
    state_dim=7,
    action_dim=7,
    padded_action_dim=8,
)

TINY_PI0 = replace(pi0(TINY, TINY.padded_action_dim, TINY.max_text), name='tiny_pi0')

TINY_SMOLVLA = replace(
    TINY_PI0,
    name='tiny_smolvla',
    vision=replace(TINY.vision, projector_bias=False),
    backbone=replace(TINY.backbone, kv_heads=2, kind='llama'),
    expert=replace(TINY_PI0.expert, self_every=2, is_causal=True),
    state_reader='backbone',
    scales_images=True,
)

NEEDLE = replace(  # pages of 1,024 patches with small marks, for questions about them
    TABLETOP,
    name='needle',
    vision=VisionConfig(image_size=256, patch_size=8, width=64, layers=1, heads=2, mlp=256),
    backbone=replace(TABLETOP.backbone, width=128, layers=4, kv_heads=2, head_dim=32, mlp=256),
    expert=ExpertConfig(width=32, mlp=32),
    views=('page',),
)

PRESETS = {
    c.name: c
    for c in (
        *(PI05, PI0, SMOLVLA, PI05_SMALL, TABLETOP, TABLETOP_LONG, TABLETOP_SMALL, NEEDLE, TINY),
        *(TINY_PI0, TINY_SMOLVLA),
    )
}


UNTRAINED = TINY.name  # the default preset of untrained weights


def preset(name: str) -> ModelConfig:
    """Return the preset of a name. Raises ValueError."""
    if name not in PRESETS:
        raise ValueError(f'preset must be one of {", ".join(PRESETS)} (got {name!r})')
    return PRESETS[name]
