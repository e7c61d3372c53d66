"""An engine of this process and its device thread, for commands that have no nodes.

Knows how one is built and measured. Does not know who uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from embodied_kv.engine.engine import Engine
from embodied_kv.engine.loop import DeviceThread
from embodied_kv.engine.warmup import warm_up
from embodied_kv.engine_config import EngineConfig
from embodied_kv.fleet.profile import Profile
from embodied_kv.model.policy import Policy
from embodied_kv.serving.batch import REPEATS, batch_seconds, profile_of
from embodied_kv.types import TextDelta


class LocalEngine:
    """Warm, and with a profile of its batches. Use it as a context.

    say: takes a line for the user. repeats: of each batch size that is measured. Raises ValueError
    for parameters that no engine can have.
    """

    def __init__(
        self,
        policy: Policy,
        config: EngineConfig,
        say: Callable[[str], object],
        repeats: int = REPEATS,
    ) -> None:
        model = policy.config
        self.engine = Engine(policy, config, model.chunk_size * model.action_dt, say=say)
        self.hear: Callable[[Sequence[TextDelta]], None] = lambda deltas: None
        self.device = DeviceThread(self.engine, lambda deltas: self.hear(deltas))
        self.device.start()
        try:
            self.device.call(lambda: warm_up(self.engine)).result()
            seconds = self.device.call(lambda: batch_seconds(self.engine, repeats)).result()
        except BaseException:
            self.device.stop()
            raise
        self._compiling = self.engine.graphs.compile_later(say)
        if self._compiling is not None:
            self._compiling.resume()
        self.profile: Profile = profile_of(model, seconds)

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._compiling is not None:
            self._compiling.stop()
        self.device.stop()
