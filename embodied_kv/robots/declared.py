"""Facts about a checkpoint that a contract contains, because its files may omit them.

A dataclass without pydantic: the checkpoint readers must import on a machine that has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PARTS = ('state', 'action')
CHOICES = {'resize': ('bilinear', 'pillow'), 'conversion': ('none', 'aloha')}
NORMALIZATIONS = ('quantiles', 'mean_std')
# Fields of a contract outside its section `checkpoint`, by the fact that they contain.
_STATE, _ACTION = 'observations.observation.state', 'actions.action'
ELSEWHERE = {
    'state_names': f'{_STATE}[].names',
    'action_names': f'{_ACTION}[].names',
    'state_dims': f'{_STATE}[].select',
    'action_dims': f'{_ACTION}[].select',
    'state_units': f'{_STATE}[].unit',
    'action_units': f'{_ACTION}[].unit',
    'views': 'observations',
    'relative': f'{_ACTION}[].relative',
    'chunk_size': 'chunk_size',
    'fps': 'fps',
}


def contract_field(name: str) -> str:
    """Return the field of a contract that contains a fact of `Declared`, for messages.

    `[]` stands for each source of a list.
    """
    return ELSEWHERE.get(name, f'checkpoint.{name}')


@dataclass(frozen=True)
class Declared:
    """All facts about a checkpoint that a contract contains; None: the checkpoint contains it.

    state_names, action_names: names in the checkpoint of each number, in its order. state_dims,
    action_dims: how many numbers the robot has; names take precedence. state_units, action_units:
    one SI unit in the unit of each number. views: names in the checkpoint of the views that have a
    camera. relative: for each number of an action, whether it is an offset from the observed state
    of the same index. state_in_prompt: whether the prompt of a pi0.5 contains the state; the other
    families have a token for it. normalization: 'quantiles' or 'mean_std' for 'state' and
    'action'. resize: 'bilinear' (LeRobot) or 'pillow' (openpi). conversion: 'aloha' is openpi's
    `adapt_to_pi`. lerobot_before_0_5: whether LeRobot before 0.5.0 trained it, which padded the
    state and the images differently. chunk_size: actions of an inference. fps: of actions, 1/s.

    Raises ValueError with the name of an invalid field.
    """

    state_names: tuple[str, ...] | None = None
    action_names: tuple[str, ...] | None = None
    state_dims: int | None = None
    action_dims: int | None = None
    state_units: tuple[float, ...] | None = None
    action_units: tuple[float, ...] | None = None
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
                raise ValueError(
                    f'{contract_field(field)} must name each once (got {list(names)})'
                )
        relative, names = self.relative, self.action_names
        if relative is not None and names is not None and len(relative) != len(names):
            raise ValueError(
                f'{contract_field("relative")} must have one entry for each of '
                f'{contract_field("action_names")} (got {len(relative)} for {len(names)})'
            )
        for part, mode in (self.normalization or {}).items():
            _check_choice('normalization', part, PARTS)
            _check_choice(f'normalization.{part}', mode, NORMALIZATIONS)
        for field, choices in CHOICES.items():
            _check_choice(field, getattr(self, field), choices)
        for field in ('state_dims', 'action_dims', 'chunk_size', 'fps'):
            value = getattr(self, field)
            if value is not None and not value > 0:
                raise ValueError(f'{contract_field(field)} must be > 0 (got {value})')

    def dims(self, part: str) -> int | None:
        """Return how many numbers 'state' or 'action' has; None if that is not declared."""
        names = getattr(self, f'{part}_names')
        return getattr(self, f'{part}_dims') if names is None else len(names)


def _check_choice(field: str, value: str | None, choices: tuple[str, ...]) -> None:
    if value is not None and value not in choices:
        raise ValueError(f'{contract_field(field)} must be {" or ".join(choices)} (got {value!r})')
