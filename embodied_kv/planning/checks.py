"""Whether a planner can plan with memory. Knows its kind and numbers; computes nothing."""

from __future__ import annotations

from torch import nn

from embodied_kv.model.planner import Planner
from embodied_kv.planning.config import PlanningConfig


def check_planner(model: nn.Module, config: PlanningConfig, head: int) -> None:
    """Raises ValueError for a recurrent planner, and for numbers that its row does not hold.

    head: tokens that every prompt begins with.
    """
    if not isinstance(model, Planner):
        raise ValueError(
            f'a {type(model).__name__} cannot plan with memory: it folds all that came '
            'before into one state, which fits no other position of a prompt'
        )
    row, needed = model.config.max_tokens, head + config.tokens + config.answer_tokens
    if needed >= row:
        raise ValueError(
            f'{config.tokens} tokens of memory and {config.answer_tokens} of an answer leave no '
            f'room for a question in a row of {row}: lower tokens or answer_tokens'
        )
