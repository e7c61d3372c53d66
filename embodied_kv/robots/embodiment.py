"""A robot as the suite uses it: its contract, with all that follows from it.

Knows what a model must look like to move this robot. Does not know models, ROS or clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from embodied_kv.config import ModelConfig
from embodied_kv.robots.contract import Contract
from embodied_kv.robots.declared import Declared
from embodied_kv.robots.mapping import ActionMap, Dimension, StateMap
from embodied_kv.robots.outputs import Output, outputs
from embodied_kv.robots.reading import ContractError, load
from embodied_kv.robots.sources import Source, is_joint

FRAME, BIN = 32, 4  # byte tokens of a prompt without words, and of a number in it


@dataclass(frozen=True)
class Embodiment:
    """A robot. state, actions: between SI and the policy's numbers. outputs: its controllers."""

    contract: Contract
    state: StateMap
    actions: ActionMap
    outputs: tuple[Output, ...]

    @classmethod
    def load(cls, contract: str) -> Embodiment:
        """By the name of a shipped contract, or by the path of a file. Raises ContractError."""
        return cls.of(load(contract))

    @classmethod
    def of(cls, contract: Contract) -> Embodiment:
        """What follows from a contract."""
        return cls(contract, StateMap(contract), ActionMap(contract), outputs(contract))

    @property
    def axes(self) -> tuple[str, ...]:
        """What each number of an action moves: a joint, or an axis of a twist."""
        return self.actions.axes

    @cached_property
    def joints(self) -> tuple[str, ...]:
        """The joints that are moved, in the order of the action."""
        return tuple(d.axis for d in self.actions.dimensions if is_joint(d.select))

    @cached_property
    def declared(self) -> Declared:
        """What the contract says of a checkpoint."""
        contract, facts = self.contract, self.contract.checkpoint
        return Declared(
            state_names=_names(self.state.dimensions, contract.state),
            action_names=_names(self.actions.dimensions, contract.action),
            views=tuple(contract.views),
            relative=tuple(d.relative for d in self.actions.dimensions),
            chunk_size=contract.chunk_size,
            fps=contract.fps,
            **{name: getattr(facts, name) for name in type(facts).model_fields},
        )

    def check(self, model: ModelConfig) -> None:
        """Raises ContractError where this model cannot move this robot; names both sides."""
        here = {
            'numbers of the state': len(self.state.dimensions),
            'numbers of an action': len(self.actions.dimensions),
            'actions of a chunk': self.contract.chunk_size or model.chunk_size,
            'actions per second': round(self.contract.fps, 6),
        }
        there = {
            'numbers of the state': model.state_dim,
            'numbers of an action': model.action_dim,
            'actions of a chunk': model.chunk_size,
            'actions per second': round(1 / model.action_dt, 6),
        }
        robot = self.contract.robot_type
        for name, number in here.items():
            if number != there[name]:
                raise ContractError(
                    f'{name}: {number} of {robot}, but {there[name]} of the model {model.name}'
                )
        if unknown := [view for view in self.contract.views if view not in model.views]:
            raise ContractError(
                f'views: {robot} has {", ".join(self.contract.views)}, the model {model.name} '
                f'knows {", ".join(model.views)}: nothing shows it {", ".join(unknown)}'
            )

    def adapted(self, model: ModelConfig) -> ModelConfig:
        """A model of untrained weights, with the numbers of this robot."""
        actions = len(self.actions.dimensions)
        return replace(
            model,
            views=tuple(self.contract.views),
            state_dim=len(self.state.dimensions),
            action_dim=actions,
            padded_action_dim=max(model.padded_action_dim, actions),
            chunk_size=self.contract.chunk_size or model.chunk_size,
            max_text=max(model.max_text, FRAME + BIN * len(self.state.dimensions)),
            action_dt=self.contract.dt,
        )


def _names(dimensions: Sequence[Dimension], sources: Sequence[Source]) -> tuple[str, ...] | None:
    """Return the names of the checkpoint, of each number; None where the contract has none."""
    return tuple(d.name for d in dimensions) if sources[0].names else None
