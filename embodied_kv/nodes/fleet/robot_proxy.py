"""A robot of a fleet as capsules at its fleet see it: what it does now, what it is to do.

Knows the robot's services `fleet/freeze` and `fleet/resume`. Does not know rows, nor when a
capsule is taken. Whoever asks waits for the robot, so it is not the engine's thread: there the
parts of a capsule take what was told before, and leave what is to be sent afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from rclpy.client import Client
from rclpy.node import Node

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.part import FrozenPart
from embodied_kv.capsule.reentry import SceneSummary, thumbnail
from embodied_kv.config import ModelConfig
from embodied_kv.control.command import Leftover
from embodied_kv.errors import CodedError, ErrorCode, failure_code
from embodied_kv.fleet.protocol import MOST_ROUNDS
from embodied_kv.msg import FleetObservation
from embodied_kv.nodes.common import conversions
from embodied_kv.nodes.fleet import messages
from embodied_kv.nodes.fleet.messages import FREEZE, RESUME
from embodied_kv.srv import FleetFreeze, FleetResume
from embodied_kv.text import shown

PATIENCE = 2.0  # s in which a robot answers


class RobotProxy:
    """One robot. Made by the thread that serves `node`, closed by any, used by another than that.

    It stands in for what the parts of a capsule freeze and resume: the robot's clock, its
    instruction and its rounds.
    """

    def __init__(
        self, node: Node, robot: str, model: ModelConfig, joint_names: tuple[str, ...]
    ) -> None:
        self._node, self.robot = node, robot
        self._model, self._joints = model, joint_names
        prefix = robot.rstrip('/')
        self._freeze = node.create_client(FleetFreeze, f'{prefix}/{FREEZE}')
        self._resume = node.create_client(FleetResume, f'{prefix}/{RESUME}')
        self._busy = threading.RLock()  # whoever orders has what was told by itself
        self._left: Leftover | None = None
        self._told, self._order = FleetFreeze.Response(), FleetResume.Request()

    def close(self) -> None:
        """Nobody is asked any more."""
        self._node.destroy_client(self._freeze)
        self._node.destroy_client(self._resume)

    # ------------------------------------------------------------------ asking the robot

    def look(self) -> SceneSummary | None:
        """Asks what the robot does.

        Returns what it sees and feels, None where it sees nothing. Raises ValueError where it
        does not answer, or tells what cannot be.
        """
        with self._busy:
            told = self._ask(self._freeze, FleetFreeze.Request())
            self._left = messages.left(told.left, self._model, self._joints)
            self._told = told
        if not told.seen.views:
            return None
        images = messages.images(told.seen, self._model)
        return SceneSummary(
            conversions.positions(told.seen.joints, told.seen.joints.name).astype(np.float64),
            {view: thumbnail(image) for view, image in images.items()},
            conversions.nanoseconds(told.seen.header.stamp),
            self.robot,
        )

    @contextmanager
    def ordered(self) -> Iterator[None]:
        """What it is to do is told anew, to be sent; nobody else looks meanwhile."""
        with self._busy:
            self._order = FleetResume.Request()
            yield

    def send(self) -> str:
        """Tells the robot what it is to do: its new task. Raises ValueError as `look` does."""
        return self._ask(self._resume, self._order).task

    def _ask(self, client: Client, request: object) -> object:
        silent = CodedError(
            f'{self.robot} does not answer on {client.srv_name}: is its action node active?',
            ErrorCode.UNAVAILABLE,
        )
        if not client.wait_for_service(PATIENCE):
            raise silent
        answered, future = threading.Event(), client.call_async(request)
        future.add_done_callback(lambda _: answered.set())
        if not answered.wait(PATIENCE):
            client.remove_pending_request(future)
            raise silent
        response = future.result()
        if not response.success:
            raise CodedError(
                f'{self.robot} refuses: {shown(response.message, 300)}',
                failure_code(response.error_code),
            )
        return response

    # ------------------------------------------------------------------ on the engine's thread

    @property
    def seen(self) -> FleetObservation:
        """Its newest moment, when it was asked last."""
        return self._told.seen

    @property
    def instruction(self) -> str:
        """What the robot is told to do."""
        return self._told.seen.instruction

    def tell(self, instruction: str) -> None:
        """It is to be told this."""
        self._order.instruction = instruction

    @property
    def round(self) -> tuple[str, int]:
        """Its task, and the number of the round that it asks for next."""
        return self._told.task, self._told.next

    def go_on(self, next: int) -> None:
        """It is to ask for this round next."""
        self._order.next = next

    def leftover(self) -> Leftover | None:
        """What is still to come of the chunk that it executes."""
        return self._left

    def resume(self, left: Leftover, stamp: int) -> None:
        """It is to execute this. stamp: of the fleet's clock; the robot has its own."""
        dt = self._model.action_dt
        self._order.left = [messages.left_message(left, dt, self._joints)]

    def hold(self) -> None:
        """It is to stay where it is."""
        self._order.hold = True


class RoundPart:
    """Where a robot's rounds stand: the noise of its next chunk is a function of their number."""

    name, depth = 'fleet', 'planner'

    def __init__(self, actor: RobotProxy) -> None:
        self._actor = actor

    def buffers(self) -> tuple:
        """None: a number is a fact."""
        return ()

    def freeze(self) -> FrozenPart:
        """The task, and the number of the round that is asked for next."""
        task, next = self._actor.round
        return FrozenPart(facts={'task': task, 'next': next})

    def check(self, frozen: FrozenPart) -> None:
        """Raises CapsuleError where there is no such number."""
        number = frozen.facts.get('next') if isinstance(frozen.facts, dict) else None
        if not isinstance(number, int) or not 0 <= number < MOST_ROUNDS:
            raise CapsuleError(
                'the capsule does not say which round comes next', ErrorCode.DAMAGED
            )

    def resume(self, frozen: FrozenPart) -> None:
        """Rounds go on from there, under the name of a new task."""
        self._actor.go_on(frozen.facts['next'])
