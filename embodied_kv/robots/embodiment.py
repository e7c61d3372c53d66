"""A robot: its contract, and the conversions and outputs that are derived from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from embodied_kv.config import ModelConfig
from embodied_kv.robots.contract import Contract
from embodied_kv.robots.declared import Declared
from embodied_kv.robots.mapping import ActionMap, Dimension, Output, StateMap, outputs
from embodied_kv.robots.reading import ContractError, load
from embodied_kv.robots.sources import Source, is_joint

FRAME, BIN = 32, 4  # byte tokens of a prompt without its text, and of each number in it


@dataclass(frozen=True)
class Embodiment:
    """A robot with the conversions of its state and actions and the outputs to its controllers."""

    contract: Contract
    state: StateMap
    actions: ActionMap
    outputs: tuple[Output, ...]

    @classmethod
    def load(cls, contract: str) -> Embodiment:
        """Return the robot of a shipped contract or of a file. Raises ContractError."""
        return cls.of(load(contract))

    @classmethod
    def of(cls, contract: Contract) -> Embodiment:
        return cls(contract, StateMap(contract), ActionMap(contract), outputs(contract))

    @property
    def axes(self) -> tuple[str, ...]:
        """Return the joint, or the axis of a twist, that each number of an action moves."""
        return self.actions.axes

    @cached_property
    def joints(self) -> tuple[str, ...]:
        """Return the moved joints, in the order of the action."""
        return tuple(d.axis for d in self.actions.dimensions if is_joint(d.select))

    @cached_property
    def declared(self) -> Declared:
        """Return the facts about a checkpoint that the contract contains."""
        contract = self.contract
        return Declared(
            state_names=_names(self.state.dimensions, contract.state),
            action_names=_names(self.actions.dimensions, contract.action),
            state_dims=len(self.state.dimensions),
            action_dims=len(self.actions.dimensions),
            state_units=tuple(abs(d.scale) for d in self.state.dimensions),
            action_units=tuple(abs(d.scale) for d in self.actions.dimensions),
            views=tuple(contract.views),
            relative=tuple(d.relative for d in self.actions.dimensions),
            chunk_size=contract.chunk_size,
            fps=contract.fps,
            **contract.checkpoint.model_dump(),
        )

    def check(self, model: ModelConfig) -> None:
        """Check that a model can move this robot. Raises ContractError."""
        contract, robot = self.contract, self.contract.robot_type
        numbers = {
            'numbers of the state': (len(self.state.dimensions), model.state_dim),
            'numbers of an action': (len(self.actions.dimensions), model.action_dim),
            'actions of a chunk': (contract.chunk_size or model.chunk_size, model.chunk_size),
            'actions per second': (round(contract.fps, 6), round(1 / model.action_dt, 6)),
        }
        for name, (here, there) in numbers.items():
            if here != there:
                raise ContractError(
                    f'{name} of {robot} must be those of the model {model.name}, {there} (got '
                    f'{here})'
                )
        if unknown := [view for view in contract.views if view not in model.views]:
            raise ContractError(
                f'views of {robot} must be among those of the model {model.name}, '
                f'{", ".join(model.views)} (got {", ".join(unknown)})'
            )

    def adapted(self, model: ModelConfig) -> ModelConfig:
        """Return the configuration of an untrained model with the dimensions of this robot."""
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
    """Return the name in the checkpoint of each number; None if the contract has none."""
    return tuple(d.name for d in dimensions) if sources[0].names else None
