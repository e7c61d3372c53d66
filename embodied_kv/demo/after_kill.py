"""The last request of a demo: the robot puts a thing back where it was, after a kill.

The thing's earlier position is in no present picture. The process of the robot is killed and
replaced in between, so the policy can read it only from the memory rows of the restored capsule.
"""

from __future__ import annotations

from dataclasses import dataclass

from rclpy.client import Client
from rclpy.node import Node
from rclpy.task import Future

from embodied_kv.demo.director import SECOND, GivenTask
from embodied_kv.demo.last_mission import LastMission
from embodied_kv.demo.nodes.truth import TrueMoment
from embodied_kv.demo.sim.tasks import Judge, Task
from embodied_kv.srv import CapsuleRestore, CapsuleSnapshot, KvMemory

CAPSULE = 'before-the-kill'
LOST = 6.0  # s after which a restore without a response is requested again
AGAIN = 3.0  # s after which a restore is requested again: the killed process may be listed still


class CapsuleClient:
    """The client of the capsule services of a robot, for one capsule on the disk.

    refusal: why nothing can be remembered, '' if the robot has memory rows, None until it answers.
    saved, restored: responses, None before; `restored` is of depth hold until memory rows are.
    """

    def __init__(self, node: Node) -> None:
        self._snapshot = node.create_client(CapsuleSnapshot, 'capsule/snapshot')
        self._restore = node.create_client(CapsuleRestore, 'capsule/restore')
        self._memory = node.create_client(KvMemory, 'kv/memory')
        self._clock, self._asked, self._is_waiting = node.get_clock(), 0, False
        self.refusal: str | None = None
        self.saved: CapsuleSnapshot.Response | None = None
        self.restored: CapsuleRestore.Response | None = None

    def ask(self) -> None:
        """Ask whether the robot has memory rows; `refusal` is the answer."""

        def answered(future: Future) -> None:
            rows = future.result().rows
            self.refusal = '' if rows else 'the robot has no memory rows (engine.memory_rows)'

        self._call(self._memory, KvMemory.Request(), answered)

    def save(self) -> None:
        """Request the capsule; `saved` is the response."""

        def answered(future: Future) -> None:
            self.saved = future.result()

        self._call(self._snapshot, CapsuleSnapshot.Request(name=CAPSULE, tier='disk'), answered)

    def restore(self) -> None:
        """Request the restore, at most once in AGAIN s; `restored` is the response.

        There is no other request until the response, or for LOST s.
        """

        def answered(future: Future) -> None:
            self._is_waiting = False
            if not self.is_restored:
                self.restored = future.result()

        now = self._clock.now().nanoseconds
        pause = LOST if self._is_waiting else AGAIN
        if now >= self._asked + pause * SECOND and self._restore.service_is_ready():
            self._asked, self._is_waiting = now, True
            self._call(self._restore, CapsuleRestore.Request(name=CAPSULE), answered)

    @property
    def is_restored(self) -> bool:
        """Whether the restore succeeded, with the memory rows."""
        response = self.restored
        return response is not None and response.success and response.depth != 'hold'

    @staticmethod
    def _call(client: Client, request: object, answered) -> None:
        client.call_async(request).add_done_callback(answered)


def task_of(mission: LastMission) -> Task | None:
    """Return the task that undoes the mission's first move of a thing from the table, or None."""
    if not mission.done or mission.errand.family != 'put':
        return None
    name = mission.errand.names[0]
    thing = next(thing for thing in mission.began.truth.things if thing.name == name)
    x, y, _ = thing.position.tolist()
    return Task('return', name, spot=(x, y))


@dataclass
class Recall:
    """The kill, the restart and the request. killed, restored: ns; 0 before.

    given: the request, None before.
    """

    task: Task
    killed: int = 0
    restored: int = 0
    given: GivenTask | None = None

    def give(self, moment: TrueMoment, instruction: str) -> None:
        """Begin to judge the request from this moment on."""
        self.given = GivenTask(moment.stamp, moment.scene, self.task, instruction)
        self._judge = Judge(self.task, moment.truth)

    def add_moment(self, moment: TrueMoment) -> None:
        """Take the next moment."""
        given = self.given
        if given is None or given.done:
            return
        self._judge.see(moment.truth)
        given.seconds, given.wrong = (moment.stamp - given.stamp) / SECOND, self._judge.wrong
        given.done = self._judge.done or None

    def end(self) -> None:
        """End the request; if it is not done yet, it has failed."""
        if self.given is not None:
            self.given.done = bool(self.given.done)

    @property
    def is_done(self) -> bool:
        """Whether the thing is back where it was."""
        return self.given is not None and bool(self.given.done)

    def report(self) -> dict[str, object]:
        """Return the entry of report.json. stopped: s from the kill to the restored session."""
        return {
            'stopped': round((self.restored - self.killed) / SECOND, 2),
            'told': self.given.instruction if self.given else '',
            'done': self.is_done,
            'wrong': bool(self.given and self.given.wrong),
            'seconds': round(self.given.seconds, 2) if self.given else None,
        }
