"""The engine and the services around it, with tiny models of random weights.

Knows how the parts are assembled, and how to bring them to rest. Does not know the operations.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError
from concurrent.futures import wait as wait_for
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random

import numpy as np
import torch

from benchmarks.soak.faults import Faults
from benchmarks.soak.ledger import Ledger
from benchmarks.soak.outcome import DeclinedError
from embodied_kv.capsule.disk import Disk
from embodied_kv.capsule.registry import DevicePool, Registry
from embodied_kv.capsule.tiers import TierCapacities
from embodied_kv.config import TINY, BackboneConfig
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.engine_thread import EngineThread
from embodied_kv.engine.fingerprint import fingerprint
from embodied_kv.engine_config import EngineConfig
from embodied_kv.kv.decode_stream import DecodeStream
from embodied_kv.kv.handle import KvHandle, Lease
from embodied_kv.kv.rows import OutOfRowsError
from embodied_kv.model.planner import PlannerConfig
from embodied_kv.model.planner_checkpoint import random_planner
from embodied_kv.model.policy import Policy
from embodied_kv.planning.config import PlanningConfig
from embodied_kv.planning.planning import Planning
from embodied_kv.session.engine_part import EnginePart
from embodied_kv.session.participant import Participant
from embodied_kv.session.robot_session import RobotSession
from embodied_kv.types import Observation, TextDelta

ROBOTS = ('', 'left', 'right')
INSTRUCTIONS = *['reach', 'put the cube into the bin'] * 4, 'stop ' * 40
PERIOD = 0.03  # s between two frames of a robot, about as short as in this soak
PATIENCE = 30.0  # s after which a future counts as unanswered
BACKLOG = 3  # maximum number of jobs that wait for the workers
ENGINE = dict(
    max_batch_robots=2,
    rows=12,
    streams=6,
    decode_tokens=48,
    euler_steps=2,
    min_euler_steps=1,
    deadline_margin_ms=1.0,
    compressed_rows=3,
)
PLANNER = PlannerConfig('soak', BackboneConfig(32, 3, 4, 2, 8, 48, 260), max_tokens=320)
PLANNING = PlanningConfig(
    max_context_tokens=160,
    max_answer_tokens=4,
    recompute_ratio=0.5,
    group_stable_steps=3,
    min_group_similarity=0.2,
    host_cache_mib=1,
)
BUDGET = 450_000  # bytes: a good half of the sum of all pools
CAPACITIES = TierCapacities(device=300_000, host=300_000, disk=600_000, policy='drop')
RATES = {'capsule copy': 0.003, 'planner step': 0.004, 'listener': 0.01}


class World(Participant):
    """The parts under test. As a context, it stops its threads at the end.

    folder: an empty one. handles: of the latest frames, which may be evicted; leases: held for
    longer than a frame.
    """

    def __init__(self, folder: Path, faults: Faults, ledger: Ledger) -> None:
        self.folder, self.faults, self.ledger = folder, faults, ledger
        self.handles: deque[KvHandle] = deque(maxlen=12)
        self.leases: list[Lease] = []
        self.engine = Engine(Policy.random(TINY, seed=1), EngineConfig(**ENGINE), PERIOD)
        self.engine.kv.budget.capacity = BUDGET
        self.kv, self.compressed = self.engine.kv, self.engine.kv.compressed
        self.device = EngineThread(self.engine, self._listen)
        self.registry = self.open_registry()
        DevicePool(self.registry, self.kv.budget)
        self.sessions = {
            robot: RobotSession(EnginePart(self.engine, robot), self.registry, self._call)
            for robot in ROBOTS
        }
        for session in self.sessions.values():
            session.participants.join(self)
        self._planner = random_planner(PLANNER, seed=3)
        self.planning = self.open_planning()
        self._workers = {name: ThreadPoolExecutor(1, name) for name in ('capsules', 'planner')}
        self._backlog: deque[Future] = deque()
        self._images = _images(np.random.default_rng(0))
        self._frames = 0

    def open_registry(self) -> Registry:
        """Return the registry of the capsules in the folder."""
        copy = self.faults.wrapped('capsule copy', torch.Tensor.to, RATES['capsule copy'])
        disk = Disk(self.folder / 'capsules')
        return Registry(fingerprint(self.engine), CAPACITIES, disk, copy=copy)

    def open_planning(self) -> Planning:
        """Return planning with the memory in the folder; it computes on the engine thread."""
        folder, kv_budget = self.folder / 'memory', self.kv.budget
        return Planning(self._planner, folder, PLANNING, step=self._step, kv_budget=kv_budget)

    def __enter__(self) -> World:
        with ExitStack() as undo:
            undo.callback(self.close)
            self.device.start()
            for worker in self._workers.values():
                worker.submit(lambda: None).result()  # start its thread
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel waiting work, and wait for running work."""
        self.device.stop()
        for worker in self._workers.values():
            worker.shutdown(cancel_futures=True)
        self.planning.close()

    # ------------------------------------------------------------------ what operations use

    def observe(
        self, random: Random, robot: str, in_time: float = 10.0, **odd: object
    ) -> Observation:
        """Return a new frame of a robot. in_time: s to its deadline. odd: fields to replace."""
        self._frames += 1
        like = dict(
            images=random.choice(self._images),
            state=np.array([random.uniform(-1, 1) for _ in range(TINY.state_dim)], np.float32),
            instruction=random.choice(INSTRUCTIONS),
            stamp=self._frames * 100_000_000,
            deadline=time.monotonic() + in_time,
            sequence=self._frames,
            robot=robot,
        )
        return Observation(**like | odd)

    def wait(self, future: Future) -> object:
        """Return the result of a future, or raise its error; `rest` reports unanswered futures."""
        try:
            return self.ledger.promise(future).result(PATIENCE)
        except TimeoutError as error:
            if future.done():
                raise
            raise DeclinedError('it is not answered') from error
        finally:
            del future  # an error refers to this stack frame; this avoids a reference cycle

    def hand_over(self, worker: str, work: Callable[[], object]) -> None:
        """Run work on a worker's thread, as a service does; wait while too many jobs wait."""
        future = self._workers[worker].submit(work)
        self._backlog.append(self.ledger.promise(future))
        while len(self._backlog) > BACKLOG:
            wait_for([self._backlog.popleft()], PATIENCE)

    def _call(self, work: Callable[[], object]) -> Future:
        return self.ledger.promise(self.device.call(work))

    def _step(self, work: Callable[[], object]) -> object:
        """Run a step of a plan on the engine thread; some steps fail."""
        risky = self.faults.wrapped('planner step', work, RATES['planner step'])
        return self.wait(self.device.background(risky))

    def _listen(self, deltas: list[TextDelta]) -> None:
        self.ledger.hear(deltas)
        self.faults.strike('listener', RATES['listener'])

    def on_resumed(self, streams: Sequence[DecodeStream]) -> None:
        self.ledger.opened(*(stream.id for stream in streams))

    # ------------------------------------------------------------------ rest

    def rest(self) -> dict[str, object]:
        """Release everything that is held, and return what is still unanswered or unended."""
        with self.faults.paused():
            unanswered = self.ledger.unanswered(PATIENCE)
            self._backlog.clear()
            for lease in self.leases:
                lease.release()
            self.leases.clear()
            self.handles.clear()
            for stream in self.kv.streams.live():
                with suppress(KeyError):  # it has just ended
                    self.engine.cancel(stream.id)
            self.device.wake()
            unended = self.ledger.unended(PATIENCE)
            self.device.call(lambda: None).result(PATIENCE)  # all deltas were delivered
            with suppress(OutOfRowsError):
                self.kv.frames.abandon(
                    self.kv.reserve(time.monotonic() + 1e6)
                )  # no frame is current
            self.ledger.settle()
        return dict(unanswered=unanswered, unended=unended)


def _images(random: np.random.Generator) -> list[tuple[np.ndarray | None, ...]]:
    """Return a few sets of images for the views of a frame; some views are missing."""
    size, views = TINY.vision.image_size, len(TINY.views)
    shape = (8, views, size, size, 3)
    whole = [tuple(shown) for shown in random.integers(0, 256, shape, dtype=np.uint8)]
    return whole + [(shown[0], *[None] * (views - 1)) for shown in whole[:3]]
