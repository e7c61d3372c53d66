"""What stands between the world's units and the network's: images, prompts, normalisation.

Knows openpi's conventions for all three. Does not know cameras, ROS or the model's weights; numpy
in, numpy out, except that images leave as one tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from embodied_kv.config import ModelConfig
from embodied_kv.model.tokenizer import Tokenizer

STATE_BINS = 256
# A joint whose quantiles lie closer than this (rad, m) did not move in the data: it says nothing.
NEAR_CONSTANT = 1e-4
# Text of more characters than this per token is cut unread: no tokenizer packs it so densely.
CHARACTERS_PER_TOKEN = 16


def resize_with_pad(image: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """uint8 [H, W, 3] -> uint8 [size, size, 3]: bilinear, aspect kept, centred on black.

    openpi's function of that name. An image that is already size x size is returned as it is.
    Raises ValueError on any other dtype or shape.
    """
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
        raise ValueError(f'image is {image.dtype} {list(image.shape)}, expected uint8 [H, W, 3]')
    height, width = image.shape[:2]
    if (height, width) == (size, size):
        return image
    ratio = max(height, width) / size
    inner = max(1, int(height / ratio)), max(1, int(width / ratio))
    pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)[None]
    resized = interpolate(pixels, size=inner, mode='bilinear', align_corners=False)[0]
    top, left = (size - inner[0]) // 2, (size - inner[1]) // 2
    canvas = np.zeros((size, size, 3), np.uint8)
    canvas[top : top + inner[0], left : left + inner[1]] = resized.permute(1, 2, 0).numpy()
    return canvas


def to_model_images(images: Sequence[NDArray[np.uint8] | None], size: int) -> Tensor:
    """The views that are present, in order: float32 [present, 3, size, size] in [-1, 1]."""
    present = [resize_with_pad(image, size) for image in images if image is not None]
    if not present:
        return torch.empty(0, 3, size, size)
    pixels = torch.from_numpy(np.stack(present)).permute(0, 3, 1, 2)
    return pixels.to(torch.float32, memory_format=torch.contiguous_format).div_(127.5).sub_(1.0)


def state_bins(state: NDArray[np.floating]) -> NDArray[np.int64]:
    """Normalised state [D] -> bins 0..255 over [-1, 1], openpi's digitize.

    Beyond the range lie the end bins (openpi says -1 below it, which is no bin; here it is 0).
    Raises ValueError for a value that is not a number.
    """
    if np.isnan(state).any():
        raise ValueError(f'state {int(np.flatnonzero(np.isnan(state))[0])} is NaN')
    edges = np.linspace(-1, 1, STATE_BINS + 1)[:-1]
    return np.clip(np.digitize(state, edges) - 1, 0, STATE_BINS - 1)


def clean(instruction: str) -> str:
    """As openpi cleans it: stripped, `_` and newline to space."""
    return instruction.strip().replace('_', ' ').replace('\n', ' ')


def prompt(instruction: str, state: NDArray[np.floating]) -> str:
    """`Task: {text}, State: {bins};`, newline, `Action: `; bins of the normalised state [D]."""
    bins = ' '.join(map(str, state_bins(state)))
    return f'Task: {clean(instruction)}, State: {bins};\nAction: '


def prompt_tokens(
    tokenizer: Tokenizer, instruction: str, state: NDArray[np.floating], max_text: int
) -> tuple[list[int], bool]:
    """The prompt's ids with BOS, at most `max_text`, and whether the instruction had to be cut.

    What is cut is the end of the instruction; the state and `Action: ` always survive.
    Raises ValueError where they alone do not fit.
    """
    text = clean(instruction)

    def encode(characters: int) -> list[int]:
        return tokenizer.encode(prompt(text[:characters], state), bos=True)

    fits, limit = 0, min(len(text), CHARACTERS_PER_TOKEN * max_text)
    ids = encode(limit)
    if len(ids) <= max_text:
        return ids, limit < len(text)
    ids = encode(0)
    if len(ids) > max_text:
        raise ValueError(f'max_text {max_text} is too short: the state takes {len(ids)} tokens')
    while limit - fits > 1:
        middle = (fits + limit) // 2
        longer = encode(middle)
        if len(longer) <= max_text:
            fits, ids = middle, longer
        else:
            limit = middle
    return ids, True


def normalise(x: NDArray, q01: NDArray, q99: NDArray) -> NDArray[np.float32]:
    """`(x - q01) / (q99 - q01 + 1e-6) * 2 - 1`; a near-constant joint reads -1, as q01 does."""
    scaled = (x - q01) / (q99 - q01 + 1e-6) * 2 - 1
    return np.where(q99 - q01 < NEAR_CONSTANT, -1.0, scaled).astype(np.float32)


def unnormalise(y: NDArray, q01: NDArray, q99: NDArray) -> NDArray[np.float32]:
    """The inverse of `normalise`; a near-constant joint is at q01, whatever the network says."""
    span = np.where(q99 - q01 < NEAR_CONSTANT, 0.0, q99 - q01 + 1e-6)
    return ((y + 1) / 2 * span + q01).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Normalizer:
    """Quantiles of a robot's data, float32, SI units.

    state_q01, state_q99: [state_dim].
    action_q01, action_q99: [action_dim] or [chunk, action_dim].
    delta: bool [action_dim]; where true, the action is a difference from the observed state of the
    same index.
    """

    state_q01: NDArray[np.float32]
    state_q99: NDArray[np.float32]
    action_q01: NDArray[np.float32]
    action_q99: NDArray[np.float32]
    delta: NDArray[np.bool_]

    def state(self, x: ArrayLike) -> NDArray[np.float32]:
        """SI [..., state_dim] -> normalised; not clipped, the bins of the prompt are."""
        return normalise(np.asarray(x, np.float32), self.state_q01, self.state_q99)

    def actions(self, normalised: ArrayLike, state: ArrayLike) -> NDArray[np.float32]:
        """The network's [..., chunk, padded] -> absolute SI actions [..., chunk, action_dim].

        state: SI [..., state_dim], as observed; deltas start from it.
        """
        y = np.asarray(normalised, np.float32)[..., : self.delta.size]
        return unnormalise(y, self.action_q01, self.action_q99) + self._origin(state)

    def targets(self, actions: ArrayLike, state: ArrayLike) -> NDArray[np.float32]:
        """The inverse of `actions`, without padding: what the network is trained to say."""
        x = np.asarray(actions, np.float32) - self._origin(state)
        return normalise(x, self.action_q01, self.action_q99)

    def _origin(self, state: ArrayLike) -> NDArray[np.float32]:
        """[..., 1, action_dim]: the observed state where the action is a delta, else 0."""
        origin = np.zeros((*np.shape(state)[:-1], 1, self.delta.size), np.float32)
        joints = np.flatnonzero(self.delta)
        origin[..., joints] = np.asarray(state, np.float32)[..., None, joints]
        return origin

    @classmethod
    def identity(
        cls, config: ModelConfig, lower: ArrayLike = -1.0, upper: ArrayLike = 1.0
    ) -> Normalizer:
        """[-1, 1] spans the joint limits: for weights that come without statistics.

        lower, upper: scalars, or one value per joint, as many as max(state_dim, action_dim).
        """
        joints = max(config.state_dim, config.action_dim)
        low = np.broadcast_to(np.asarray(lower, np.float32), joints)
        high = np.broadcast_to(np.asarray(upper, np.float32), joints)
        parts = {'state': config.state_dim, 'actions': config.action_dim}
        stats = {part: {'q01': low[:n], 'q99': high[:n]} for part, n in parts.items()}
        return cls.from_dict(stats, config)

    def to_dict(self) -> dict:
        """JSON-able, in the layout of openpi's norm_stats.json, plus `delta`."""
        return {
            'norm_stats': {
                'state': {'q01': self.state_q01.tolist(), 'q99': self.state_q99.tolist()},
                'actions': {'q01': self.action_q01.tolist(), 'q99': self.action_q99.tolist()},
            },
            'delta': self.delta.tolist(),
        }

    @classmethod
    def from_dict(cls, stats: dict, config: ModelConfig) -> Normalizer:
        """From `to_dict` or openpi's norm_stats.json (mean and std are not used).

        Raises ValueError that names the entry that is missing, not finite, or of other shape.
        """
        per_step = (config.chunk_size, config.action_dim)
        if not isinstance(stats, dict):
            raise ValueError('norm_stats: state and actions are missing')
        entries = stats.get('norm_stats', stats)

        def quantile(part: str, name: str, *shapes: tuple[int, ...]) -> NDArray[np.float32]:
            if name not in (entries.get(part) or ()):
                raise ValueError(f'norm_stats: {part}.{name} is missing')
            values = np.array(entries[part][name], np.float32)
            if values.shape not in shapes:
                wanted = ' or '.join(str(list(shape)) for shape in shapes)
                raise ValueError(
                    f'norm_stats: {part}.{name} is {list(values.shape)}, the model has {wanted}'
                )
            if not np.isfinite(values).all():
                raise ValueError(f'norm_stats: {part}.{name} is not finite')
            return values

        delta = np.array(stats.get('delta', [False] * config.action_dim), bool)
        if delta.shape != (config.action_dim,):
            raise ValueError(
                f'norm_stats: delta is {list(delta.shape)}, the model has [{config.action_dim}]'
            )
        if delta[config.state_dim :].any():
            raise ValueError(
                f'norm_stats: delta beyond the {config.state_dim} joints of the state'
            )
        normalizer = cls(
            state_q01=quantile('state', 'q01', (config.state_dim,)),
            state_q99=quantile('state', 'q99', (config.state_dim,)),
            action_q01=quantile('actions', 'q01', (config.action_dim,), per_step),
            action_q99=quantile('actions', 'q99', (config.action_dim,), per_step),
            delta=delta,
        )
        if normalizer.action_q01.shape != normalizer.action_q99.shape:
            raise ValueError('norm_stats: actions.q01 and actions.q99 differ in shape')
        for part, low, high in (
            ('state', normalizer.state_q01, normalizer.state_q99),
            ('actions', normalizer.action_q01, normalizer.action_q99),
        ):
            if (high < low).any():
                raise ValueError(f'norm_stats: {part}.q99 lies below {part}.q01')
        return normalizer
