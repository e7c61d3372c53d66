"""What a robot's contract says of a checkpoint: the facts that its files may leave out.

Knows the names and the possible values of these facts. Does not know files, nor which facts a
project writes down: `model.checkpoints` asks, and refuses what neither side says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PARTS = ('state', 'action')
NORMALIZATIONS = ('quantiles', 'mean_std')
RESIZES = ('bilinear', 'pillow')
CONVERSIONS = ('none', 'aloha')


@dataclass(frozen=True)
class Declared:
    """The section `checkpoint:` of a contract; a field that is None is left to the folder.

    state_names, action_names: of each dim, as the checkpoint calls it, in its order.
    views: those that have a camera, as the checkpoint calls them.
    relative: of each action dim, whether the action is an offset from the observed state of the
    same index. state_in_prompt: whether the prompt spells the state. normalization: part ('state',
    'action') -> 'quantiles' or 'mean_std'. resize: 'bilinear' (LeRobot) or 'pillow' (openpi).
    conversion: 'aloha' is openpi's `adapt_to_pi`. lerobot_before_0_5: whether LeRobot before 0.5.0
    trained it, which padded the state and the images otherwise. chunk_size: actions that one
    inference gives. fps: of these actions, 1/s.

    Raises ValueError that names the field that cannot be.
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
                raise ValueError(f'checkpoint.{field} is {list(names)}: name each once')
        relative, action_names = self.relative, self.action_names
        if relative is not None and action_names is not None:
            if len(relative) != len(action_names):
                raise ValueError(
                    f'checkpoint.relative has {len(relative)} entries, '
                    f'checkpoint.action_names has {len(action_names)}: give one for each'
                )
        for part, mode in (self.normalization or {}).items():
            if part not in PARTS:
                raise ValueError(f'checkpoint.normalization has {part}: it has state and action')
            _check_choice(f'normalization.{part}', mode, NORMALIZATIONS)
        _check_choice('resize', self.resize, RESIZES)
        _check_choice('conversion', self.conversion, CONVERSIONS)
        for field in ('chunk_size', 'fps'):
            if getattr(self, field) is not None and not getattr(self, field) > 0:
                raise ValueError(
                    f'checkpoint.{field} must be above 0 (got {getattr(self, field)})'
                )


def _check_choice(field: str, value: str | None, choices: tuple[str, ...]) -> None:
    if value is not None and value not in choices:
        raise ValueError(f'checkpoint.{field} is {value!r}: it is {" or ".join(choices)}')
