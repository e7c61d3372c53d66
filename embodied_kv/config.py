"""Every number of the suite, once: frozen, named presets, derived values derived.

Knows dimensions and budgets. Does not know torch, ROS or files.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

DTYPES = {'float32': 4, 'bfloat16': 2}  # of weights and KV: bytes of a number
RTC_SCHEDULES = ('linear', 'exponential', 'ones', 'zeros')


@dataclass(frozen=True)
class VisionConfig:
    """A SigLIP tower; `merge` x `merge` neighbouring patches become one token (1 in pi0.5)."""

    image_size: int
    patch_size: int
    width: int
    layers: int
    heads: int
    mlp: int
    merge: int = 1
    eps: float = 1e-6

    @property
    def patches(self) -> int:
        return (self.image_size // self.patch_size) ** 2

    @property
    def tokens(self) -> int:
        """Tokens that one image adds to the prefix."""
        return self.patches // self.merge**2


@dataclass(frozen=True)
class BackboneConfig:
    """A Gemma decoder: the language backbone whose KV is shared."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab_size: int
    rope_theta: float = 10_000.0
    eps: float = 1e-6


@dataclass(frozen=True)
class ExpertConfig:
    """The action expert.

    Layers, heads and head_dim are the backbone's: layer i reads its layer i's KV.
    """

    width: int
    mlp: int
    time_min_period: float = 4e-3
    time_max_period: float = 4.0


@dataclass(frozen=True)
class ModelConfig:
    """A pi0.5-class model. `action_dim` is the robot's, `padded_action_dim` the network's.

    dtype: of a preset, that of a device with units for it; `model.dtype.served` gives the config
    that a machine computes with.
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

    def __post_init__(self) -> None:
        if self.action_dim > self.padded_action_dim:
            raise ValueError(
                f'action_dim {self.action_dim} > padded_action_dim {self.padded_action_dim}'
            )
        if self.backbone.heads % self.backbone.kv_heads:
            raise ValueError(
                f'{self.backbone.heads} heads do not share {self.backbone.kv_heads} KV heads'
            )

    @property
    def prefix_tokens(self) -> int:
        """Longest prefix: every view present, text full."""
        return len(self.views) * self.vision.tokens + self.max_text

    @property
    def kv_bytes_per_token(self) -> int:
        b = self.backbone
        return 2 * b.layers * b.kv_heads * b.head_dim * DTYPES[self.dtype]

    @property
    def digest(self) -> str:
        """16 hex digits that change with any dimension."""
        return hashlib.sha256(repr(asdict(self)).encode()).hexdigest()[:16]


def _param(default: Any, help: str, **more: object) -> Any:
    """A field and its `help`; range: of the numbers that it may be; choices: of the words."""
    return field(default=default, metadata={'help': help, **more})


@dataclass(frozen=True)
class EngineConfig:
    """How much the engine keeps and how it spends time.

    Each field is also a ROS parameter `engine.NAME`. Raises ValueError, with what to change, for a
    number out of its range and for parameters that contradict each other.
    """

    robots: int = _param(
        1, 'Robots whose frames one prefill, and one denoising, may batch', range=(1, 256)
    )
    rows: int = _param(16, 'Prefix rows in the arena', range=(3, 4096))
    reserved_rows: int = _param(2, 'Prefix rows that language may never hold', range=(2, 64))
    streams: int = _param(16, 'Decode streams that may live at once', range=(1, 4096))
    decode_tokens: int = _param(
        96, 'Tokens of a stream: its query and what it says', range=(8, 4096), old='tail_tokens'
    )
    euler_steps: int = _param(10, 'Euler steps of a chunk when time allows', range=(1, 50))
    min_euler_steps: int = _param(
        4, 'Fewest Euler steps; with less time the frame falls back', range=(1, 50)
    )
    rtc: str = _param(
        'off',
        'How a chunk goes on from the one that runs (real-time chunking): off, guided (any '
        'policy) or trained (one that was trained to)',
        choices=('off', 'guided', 'trained'),
    )
    rtc_max_guidance: float = _param(
        5.0, 'Greatest weight of the guidance of rtc: guided', range=(0.0, 100.0)
    )
    rtc_horizon: int = _param(
        0,
        'Actions of a chunk, from its first on, that the running one shapes; until then it must '
        'take over. 0: half of them',
        range=(0, 1000),
    )
    rtc_schedule: str = _param(
        'exponential',
        'How guidance fades out until rtc_horizon: linear, exponential, ones or zeros',
        choices=RTC_SCHEDULES,
    )
    margin_ms: float = _param(
        4.0, 'Kept free before every deadline, for publishing', range=(0.0, 1000.0)
    )
    time_budget: bool = _param(
        True,
        'Plan Euler steps and decode steps by the time left; off: always all, as soon as possible',
        old='budget',
    )
    threads: int = _param(1, 'Torch threads of the device thread', range=(1, 256))
    batch_multiple: int = _param(
        1, 'Decode batches are padded to a multiple of this; one graph each', range=(1, 256)
    )
    compressed_rows: int = _param(
        2,
        'Room for compressed prefixes, in whole ones; 0: nothing is compressed',
        range=(0, 4096),
        old='flat_rows',
    )
    compress: str = _param('vl_cache', 'Method that chooses the tokens that are kept')
    compress_by: str = _param(
        'text',
        'What language is compressed by: stream (each question), row (the prompt, once a frame) '
        'or text (both)',
        choices=('stream', 'row', 'text'),
    )
    language_keep_ratio: float = _param(
        1.0, 'Share of a prefix that language keeps', range=(0.01, 1.0), old='language_alpha'
    )
    action_keep_ratio: float = _param(
        1.0, 'Share of a prefix that actions keep', range=(0.01, 1.0), old='action_alpha'
    )
    device: str = _param('cpu', 'cpu or cuda')
    dtype: str = _param(
        'auto',
        "float32, bfloat16 or auto: the model's own, but float32 on a CPU without units for "
        'bfloat16',
    )
    seed: int = _param(
        0, 'Of the action noise; each frame mixes in its number', range=(0, 2**31 - 1)
    )

    def __post_init__(self) -> None:
        for f in fields(self):
            value, (low, high) = getattr(self, f.name), f.metadata.get('range', (None, None))
            if low is not None and not low <= value <= high:
                raise ValueError(f'engine.{f.name} is {value}: it must be from {low} to {high}')
            *first, last = choices = f.metadata.get('choices', (value,))
            if value not in choices:
                words = f'{", ".join(first)} or {last}'
                raise ValueError(f'engine.{f.name} is {value!r}: it must be {words}')
        if contradiction := self._contradiction():
            raise ValueError(contradiction)

    def horizon(self, chunk_size: int) -> int:
        """s: the actions of a chunk that the running one shapes."""
        return min(self.rtc_horizon or max(1, chunk_size // 2), chunk_size)

    def allowed(self, model: ModelConfig, period: float) -> float:
        """s from an observation to the deadline of its chunk. period: s between two frames.

        A period; with real-time chunking until the horizon, where that is later.
        """
        if self.rtc == 'off':
            return period
        return max(period, self.horizon(model.chunk_size) * model.action_dt)

    def _contradiction(self) -> str:
        """Which two parameters exclude each other, and what to do; '' if none do."""
        if self.rows < 2 * self.robots:
            return (
                f'engine.rows is {self.rows} for engine.robots {self.robots}: a robot needs two, '
                f'one that is read while its next is written; raise it to {2 * self.robots}'
            )
        if self.reserved_rows >= self.rows:
            return (
                f'engine.reserved_rows is {self.reserved_rows} of {self.rows} rows: none is left '
                'for language; lower it, or raise engine.rows'
            )
        for name, limit in (('min_euler_steps', 'euler_steps'), ('batch_multiple', 'streams')):
            if (value := getattr(self, name)) > (most := getattr(self, limit)):
                return f'engine.{name} is {value}, above engine.{limit} {most}: lower it'
        for name in ('language_keep_ratio', 'action_keep_ratio'):
            if (ratio := getattr(self, name)) < 1 and not self.compressed_rows:
                return (
                    f'engine.{name} is {ratio}, but engine.compressed_rows is 0: there is no room '
                    'for compressed prefixes; raise that, or set the ratio to 1'
                )
        return ''


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

# The tabletop seen sharply: prefixes long enough that a tenth of their cache still says something.
TABLETOP_LONG = replace(
    TABLETOP, name='tabletop_long', vision=replace(TABLETOP.vision, image_size=128, merge=1)
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

NEEDLE = replace(  # pages of 1,024 patches with small marks, to be asked about
    TABLETOP,
    name='needle',
    vision=VisionConfig(image_size=256, patch_size=8, width=64, layers=1, heads=2, mlp=256),
    backbone=replace(TABLETOP.backbone, width=128, layers=4, kv_heads=2, head_dim=32, mlp=256),
    expert=ExpertConfig(width=32, mlp=32),
    views=('page',),
)

PRESETS = {c.name: c for c in (PI05, PI05_SMALL, TABLETOP, TABLETOP_LONG, NEEDLE, TINY)}


def preset(name: str) -> ModelConfig:
    """The preset of that name. Raises ValueError that lists the names."""
    if name not in PRESETS:
        raise ValueError(f'no preset {name!r}; there are: {", ".join(PRESETS)}')
    return PRESETS[name]
