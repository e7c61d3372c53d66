"""Facts about a checkpoint that its files may omit, as the contract of a robot declares them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PARTS = ('state', 'action')
CHOICES = {
    'normalization.state': ('quantiles', 'mean_std'),
    'normalization.action': ('quantiles', 'mean_std'),
    'resize': ('bilinear', 'pillow'),
    'conversion': ('none', 'aloha'),
}


@dataclass(frozen=True)
class Declared:
    """The section `checkpoint:` of a contract; None for a fact that the checkpoint must contain.

    Args:
        state_names, action_names: Names in the checkpoint of each number, in its order.
        views: Names in the checkpoint of the views that have a camera.
        relative: For each number of an action, whether it is an offset from the observed state of
            the same index.
        state_in_prompt: Whether the prompt contains the state.
        normalization: 'state' and 'action' -> 'quantiles' or 'mean_std'.
        resize: 'bilinear' (LeRobot) or 'pillow' (openpi).
        conversion: 'aloha' is openpi's `adapt_to_pi`.
        lerobot_before_0_5: Whether LeRobot before 0.5.0 trained it, which padded the state and the
            images in another way.
        chunk_size: Actions of one inference.
        fps: Actions per second.

    Raises:
        ValueError: if a fact has an impossible value.
    """

    state_names: tuple[str, ...] | None = None
    action_names: tuple[str, ...] | None = None
    views: tuple[str, ...] | None = None
    relative: tuple[bool, ...] | None = None
    state_in_prompt: bool | None = None
    normalization: Mapping[str, str] | None = None
    resize: str | None = None
    conversion: str | None = None
    lerobot_before_0_5: bool | None = None
    chunk_size: int | None = None
    fps: float | None = None

    def __post_init__(self) -> None:
        for field in ('state_names', 'action_names', 'views'):
            names = getattr(self, field)
            if names is not None and (not names or len(set(names)) < len(names)):
                raise ValueError(f'checkpoint.{field} must name each once (got {list(names)})')
        relative, names = self.relative, self.action_names
        if relative is not None and names is not None and len(relative) != len(names):
            raise ValueError(
                'checkpoint.relative must have one entry for each of checkpoint.action_names '
                f'(got {len(relative)} for {len(names)})'
            )
        chosen = {'resize': self.resize, 'conversion': self.conversion}
        for part, mode in (self.normalization or {}).items():
            if part not in PARTS:
                raise ValueError(f'checkpoint.normalization must have state, action (got {part})')
            chosen[f'normalization.{part}'] = mode
        for field, value in chosen.items():
            if value is not None and value not in CHOICES[field]:
                raise ValueError(
                    f'checkpoint.{field} must be {" or ".join(CHOICES[field])} (got {value!r})'
                )
        for field in ('chunk_size', 'fps'):
            if (number := getattr(self, field)) is not None and not number > 0:
                raise ValueError(f'checkpoint.{field} must be > 0 (got {number})')
