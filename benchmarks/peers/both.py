"""One network twice, the engine's and LeRobot's, with equal dimensions and weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import ModuleType

from benchmarks.peers import pi05, smolvla, weights
from benchmarks.peers.ways import WAYS, Asked, Network, Peer, Way, ours, theirs
from embodied_kv.config import ModelConfig

FAMILIES = {'gemma': pi05, 'llama': smolvla}  # modules by the kind of the backbone
COMPILE = {'ours_eager': 'off', 'ours_compiled': 'now'}


def family(c: ModelConfig) -> ModuleType:
    """Return the module of the family of LeRobot's model."""
    return FAMILIES[c.backbone.kind]


@dataclass(frozen=True, eq=False)
class Both:
    """The two models. policy: the engine's. peer: LeRobot's. parameters: number of each."""

    policy: Network
    peer: Peer
    parameters: int

    @classmethod
    def random(cls, c: ModelConfig, module: ModuleType, device: str) -> Both:
        """Return both in float32. Raises BenchmarkError if LeRobot does not support `c`."""
        c = replace(c, dtype='float32')
        peer = family(c).Peer(module, c, device)
        policy = Network.random(c, device=device)
        return cls(policy, peer, weights.copy(policy.model, peer.model))

    def to(self, dtype: str) -> Both:
        """Return both in another dtype. LeRobot's weights are converted in place."""
        if dtype == self.policy.config.dtype:
            return self
        self.peer.round(dtype)
        c, device = replace(self.policy.config, dtype=dtype), self.policy.model.device.type
        return replace(self, policy=Network.random(c, device=device))

    def theirs(self, first: Asked, compiled: bool = False) -> Way:
        """Return LeRobot's way. first: the frame that is timed."""
        return theirs(self.peer, first, self.peer.compile_mode if compiled else None)

    @contextmanager
    def opened(self, names: Sequence[str], first: Asked, threads: int) -> Iterator[dict[str, Way]]:
        """Yield the named ways, in the order of `WAYS`."""
        with ExitStack() as stack:
            made = {}
            for name in (way for way in WAYS if way in names):
                if name in COMPILE:
                    engine = ours(self.policy, first, threads, COMPILE[name])
                    made[name] = stack.enter_context(engine)
                else:
                    made[name] = self.theirs(first, compiled=name == 'theirs_compiled')
            yield made
