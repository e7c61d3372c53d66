"""An action server in the test process with configurable behaviour."""

import time

import rclpy
from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.executors import SingleThreadedExecutor

PATIENCE = 30.0  # s for something that takes milliseconds


class Pair:
    """A server and a client node of one action, spun by the calling test.

    The server behaves as controllers of ros2_control do: a new goal aborts the one before it, a
    cancelled goal ends at once, and other goals end when the test ends them.
    """

    def __init__(self, action, name='do', serve=True):
        self.node = rclpy.create_node('client')
        self._servers = rclpy.create_node('server')
        self.executor = SingleThreadedExecutor()
        self.executor.add_node(self.node)
        self.executor.add_node(self._servers)
        self.action, self.name = action, name
        self.accepts, self.goals, self.active, self.server = True, [], None, None
        self.preempted = action.Result()  # the result of a replaced goal
        self.outcomes = []
        if serve:
            self.serve()

    def serve(self):
        self.server = ActionServer(
            self._servers,
            self.action,
            self.name,
            execute_callback=lambda goal: self.action.Result(),
            goal_callback=self._asked,
            handle_accepted_callback=self._accepted,
            cancel_callback=self._cancel,
        )

    def report(self, outcome):
        self.outcomes.append(outcome)

    @property
    def states(self):
        return [outcome.state for outcome in self.outcomes]

    def end(self, how, **fields):
        """End the running goal. how: 'succeed' or 'abort'. fields: of its result."""
        goal, self.active = self.active, None
        self._end(goal, how, self.action.Result(**fields))

    def _end(self, goal, how, result):
        def ended(handle):
            getattr(handle, how)()
            return result

        goal.execute(ended)

    def until(self, happened):
        ends = time.monotonic() + PATIENCE
        while not happened():
            assert time.monotonic() < ends, 'it did not happen'
            self.executor.spin_once(timeout_sec=0.02)

    def spin(self, seconds):
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self.executor.spin_once(timeout_sec=0.02)

    def close(self):
        if self.server is not None:
            self.server.destroy()
        self.executor.shutdown()
        self.node.destroy_node()
        self._servers.destroy_node()

    def _asked(self, request):
        return GoalResponse.ACCEPT if self.accepts else GoalResponse.REJECT

    def _accepted(self, goal):
        if self.active is not None:
            self._end(self.active, 'abort', self.preempted)
        self.goals.append(goal.request)
        self.active = goal

    def _cancel(self, goal):
        if goal is self.active:
            self.active = None
            # The state changes after this callback, so a task that runs later ends the goal.
            self._servers.executor.create_task(
                lambda: self._end(goal, 'canceled', self.action.Result())
            )
        return CancelResponse.ACCEPT
