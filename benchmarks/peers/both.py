"""The same network twice, ours and LeRobot's: of the same dimensions, weights and dtype.

Knows how both are made, and opened in the ways that are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import ModuleType

from torch import nn

from benchmarks.peers import lerobot, weights
from benchmarks.peers.ways import WAYS, Asked, Network, Way, ours, theirs
from embodied_kv.config import ModelConfig

COMPILE = {'ours_eager': 'off', 'ours_compiled': 'now'}


@dataclass(frozen=True, eq=False)
class Both:
    """policy: ours. model: theirs, a PI05Pytorch of `module`. parameters: of each."""

    policy: Network
    module: ModuleType
    model: nn.Module
    parameters: int

    @classmethod
    def random(cls, c: ModelConfig, module: ModuleType, device: str) -> Both:
        """In float32. Raises BenchmarkError where theirs cannot be of these dimensions."""
        c = replace(c, dtype='float32')
        model = lerobot.build(module, c, device)
        policy = Network.random(c, device=device)
        return cls(policy, module, model, weights.copy(policy.model, model))

    def to(self, dtype: str) -> Both:
        """The same in another dtype, theirs as LeRobot does it: in place."""
        if dtype == self.policy.config.dtype:
            return self
        self.model.paligemma_with_expert.to_bfloat16_for_selected_params(dtype)
        c, device = replace(self.policy.config, dtype=dtype), self.policy.model.device.type
        return replace(self, policy=Network.random(c, device=device))

    @property
    def compile_mode(self) -> str:
        """In which LeRobot compiles."""
        return self.model.config.compile_mode

    def theirs(self, first: Asked, compiled: bool = False) -> Way:
        """first: the frame that is timed."""
        mode = self.compile_mode if compiled else None
        return theirs(self.module, self.model, first, mode)

    @contextmanager
    def opened(self, names: Sequence[str], first: Asked, threads: int) -> Iterator[dict[str, Way]]:
        """The named ways, in the order of `WAYS`."""
        with ExitStack() as stack:
            made = {}
            for name in (way for way in WAYS if way in names):
                if name in COMPILE:
                    engine = ours(self.policy, first, threads, COMPILE[name])
                    made[name] = stack.enter_context(engine)
                else:
                    made[name] = self.theirs(first, compiled=name == 'theirs_compiled')
            yield made
