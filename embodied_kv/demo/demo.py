"""Run the suite and the simulated robot for a while, with tasks and a mission (`make demo`).

The demo observes topics and services as any other program could (`monitor`). A `director` chooses
the tasks. With memory rows the process of the robot is killed after the mission, and the new one
puts back what the mission has moved (`after_kill`). The demo writes report.json and, when the
suite has ended, frames.png and demo.mp4.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import rclpy
import yaml
from ament_index_python.packages import get_package_share_directory
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor

from embodied_kv.action import Mission
from embodied_kv.demo.after_kill import CapsuleClient, Recall, task_of
from embodied_kv.demo.director import SECOND, Director
from embodied_kv.demo.last_mission import Errand, LastMission, choose_mission
from embodied_kv.demo.memory_client import MemoryClient
from embodied_kv.demo.mission_client import TIMEOUT, UNKNOWN, MissionClient
from embodied_kv.demo.monitor import Monitor
from embodied_kv.demo.nodes.truth import TrueMoment
from embodied_kv.demo.picture import SceneRenderer
from embodied_kv.demo.recording import Recording, Sentence
from embodied_kv.demo.report import report
from embodied_kv.demo.score import Score
from embodied_kv.demo.screen import Screen
from embodied_kv.demo.sim.language import where_is
from embodied_kv.demo.sim.tabletop import Tabletop
from embodied_kv.demo.sim.tasks import SECONDS, Task, hindrance, task_scene
from embodied_kv.demo.storyboard import CARDS, PICTURE, draw_storyboard, make_cards
from embodied_kv.demo.summary import summarize
from embodied_kv.demo.video import LARGE, FilmError, draw_film
from embodied_kv.nodes.common.conversions import nanoseconds

FAMILY = 'put'  # its scenes have tasks of all families
FIRST = 'pick up the red cube'  # until the first task
# Scenes below 1,000,000 are for training; 1,000,001 is the first other one with five objects.
SEED, EVALUATION_SEED = 1_000_001, 2_000_000
RECORDED = CARDS * max(SECONDS.values())  # s: longest duration of the tasks in frames.png
ANSWERING = 20.0  # s: time limit of an answer of the memory, and of a mission's cancellation
PATIENCE = 60.0  # s: longest wait of the arm for a chunk, on a busy machine
MISSION = 60.0  # s: time limit of the mission at the end
SCENES = 3  # scenes that are tried for a possible mission
SETTLE = 1.0  # s after which the robot acts on images of a new scene
CLEAR = 0.4 * SECOND  # ns after a new scene; answers about the last one have arrived by then
WORD = 0  # number of the phrasing of the request after the kill
LONGER = 15.0  # s that the film may take longer, until the task in force ends
ENDING = {signal.SIGINT: 5.0, signal.SIGTERM: 3.0, signal.SIGKILL: 3.0}  # s, in this order


class DemoError(Exception):
    """Error: the demo cannot continue. The message is for the user."""


class Child:
    """A child process with its output in a file."""

    def __init__(self, name: str, module: str, log: Path, *arguments: str) -> None:
        self.name, self.log = name, log
        command = [sys.executable, '-m', f'embodied_kv.{module}', '--ros-args', *arguments]
        with log.open('wb') as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    def check(self) -> None:
        """Raise DemoError, with the end of the log, if the process has ended."""
        code = self.process.poll()
        if code is not None:
            raise DemoError(f'process {self.name} ended with status {code}: {self.log_end()}')

    def log_end(self) -> str:
        """Return the last lines of the log."""
        lines = self.log.read_text(errors='replace').splitlines()[-12:]
        return '\n  '.join([f'{self.log} ends with', *lines])


def end(children: Sequence[Child]) -> None:
    """End all processes, by SIGINT, SIGTERM and at last SIGKILL."""
    for number, patience in ENDING.items():
        for child in children:
            child.process.send_signal(number)
        deadline = time.monotonic() + patience
        with suppress(subprocess.TimeoutExpired):
            for child in children:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            return


class Demo:
    """One run. arguments: of the command line."""

    def __init__(self, arguments: argparse.Namespace, resources: ExitStack) -> None:
        self.arguments, self.out = arguments, arguments.out
        self.out.mkdir(parents=True, exist_ok=True)
        self.started = time.monotonic()
        self._capsules = resources.enter_context(TemporaryDirectory())
        self.children: list[Child] = []
        resources.callback(end, self.children)
        self.robot = self._start('robot', 'nodes.robot', FIRST)
        self._start('sim', 'demo.nodes.node', FIRST)
        self.monitor = Monitor(arguments.namespace, task_scene(FAMILY))
        self.director = Director(
            arguments.seed,
            tell=self.monitor.tell,
            ask=self.monitor.ask,
            reset=self.monitor.reset,
            hindrance=self._hindrance,
            fresh=arguments.episodes is not None,
        )
        self.score = Score(self.director.task_at)
        self.memory_client = MemoryClient(self.monitor)
        self.mission_client = MissionClient(self.monitor)
        self.mission: LastMission | None = None
        self.recall: Recall | None = None
        self.recording = Recording(RECORDED)
        self._now: TrueMoment | None = None
        self._clear_at = math.inf  # ns
        self._table = resources.enter_context(Tabletop(task_scene(FAMILY), arguments.seed))
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self.monitor)
        self._screen = resources.enter_context(Screen(not arguments.no_table))

    def _start(self, name: str, module: str, instruction: str) -> Child:
        own = self._own_parameters(instruction)
        files = '--params-file', self.arguments.params, '--params-file', own
        common = (*files, '-r', f'__ns:=/{self.arguments.namespace}')
        self.children.append(Child(name, module, self.out / f'{name}.log', *common))
        return self.children[-1]

    def _own_parameters(self, instruction: str) -> str:
        """Write a parameter file: scenes, an empty memory, a longer `resume_within`.

        It is a file, because the params file would override `-p`. instruction: the first one.
        """
        own = {
            'sim': {'seed': self.arguments.seed, 'family': FAMILY, 'truth': True},
            'memory': {'storage_directory': ''} | self._planner(),
            'session': {'capsule_directory': self._capsules},
            'perception': {'instruction': instruction},
            'action': {'resume_within': PATIENCE},
        }
        values = {f'/**/{node}': {'ros__parameters': values} for node, values in own.items()}
        path = self.out / 'demo.yaml'
        path.write_text(yaml.safe_dump(values))
        return str(path)

    def _planner(self) -> dict[str, str]:
        planner = self.arguments.planner
        return {'planner': str(planner.resolve())} if planner else {}

    def run(self) -> dict[str, object]:
        """Run the demo and return the contents of report.json.

        Raises:
            DemoError: No command arrives in time, or a process ends.
        """
        self._await_first_command()
        first = time.monotonic() - self.started
        while not self._is_over():
            self._tick()
            self._direct()
        if self._now:
            self.director.end(self._now.stamp)
            self.recording.stop(self._now.stamp)
        self._remember()
        mission = self._carry_out()
        recall = self._put_back()
        return {
            'seconds from start to first command': round(first, 2),
            **report(self.monitor, self.director, self.score),
            'memory': self.memory_client.report(),
            'mission': mission,
            'recall': recall,
        }

    def _is_over(self) -> bool:
        if self.arguments.episodes is not None:
            return len(self.director.judged) >= self.arguments.episodes
        if late := self.monitor.seconds >= self.arguments.seconds:
            self.director.close()
        longest = self.arguments.seconds + LONGER
        return late and (self.director.is_finished or self.monitor.seconds >= longest)

    def _await_first_command(self) -> None:
        while self.monitor.began is None:
            self._tick()
            waited = time.monotonic() - self.started
            if waited > self.arguments.timeout:
                words = '\n'.join(child.log_end() for child in self.children)
                raise DemoError(f'no command within {self.arguments.timeout:.0f} s\n{words}')
        self.monitor.moments.clear()
        self.monitor.decisions.clear()

    def _tick(self) -> None:
        try:
            self._executor.spin_once(timeout_sec=0.1)
        except ValueError as error:  # the true state is of other scenes
            raise DemoError(str(error)) from error
        if not rclpy.ok():
            raise KeyboardInterrupt
        if self._screen.due():
            for child in self.children:
                child.check()
            self.monitor.poll()
            self._screen.show(self.monitor, self.director, time.monotonic() - self.started)

    def _direct(self) -> None:
        """Distribute new messages."""
        while self.monitor.moments:
            moment = self.monitor.moments.popleft()
            self.director.add_moment(moment)
            self.score.add_moment(moment)
            self.recording.add_moment(moment)
            if self.mission:
                self.mission.add_moment(moment)
            if self.recall:
                self.recall.add_moment(moment)
            if self._now and moment.scene != self._now.scene:
                self._clear_at = moment.stamp + CLEAR
            if moment.stamp >= self._clear_at:
                self._clear_at = math.inf
                self.memory_client.clear()
            self._now = moment
        while self.monitor.decisions:
            self.recording.decide(self.monitor.decisions.popleft())
        while self.monitor.ended:
            words = self.monitor.ended.popleft()
            self.director.add_text(words.stamp, words.query, words.text)
            self.score.add_text(words.stamp, words.query, words.text)
            self.recording.add_text(Sentence(words.received, words.query, words.text))
        while self.mission_client.states:
            state = self.mission_client.states.popleft()
            if self.mission:
                stamp = nanoseconds(state.header.stamp)
                self.mission.set_progress(stamp, state.step, state.steps)

    def _remember(self) -> None:
        """Ask the memory for the position of a thing, preferably one that was moved."""
        now = self._now
        told = [one for one in self.director.told if now and one.scene == now.scene]
        done = [one for one in told if one.done and one.task.place]
        known = [one for one in done if one.reported]
        if now is None or not told:
            return
        target = (known or done or told)[-1].task.target
        self.memory_client.ask(f'Where is the {target}?', where_is(target, now.truth))
        self._until(lambda: self.memory_client.is_over, ANSWERING)

    def _carry_out(self) -> dict[str, object]:
        """Run the mission; return its result, or why there was none."""
        if refusal := self._mission_refusal():
            return {'refused': refusal}
        errand = self._errand()
        if errand is None or self._now is None:
            return {'refused': f'nothing can be moved in {SCENES} scenes'}
        client, now = self.mission_client, self._now
        self.recording.go_on(now.stamp)
        self.mission = LastMission(errand, now)
        self.monitor.instruction = errand.words
        client.send(errand.words)
        if not self._until(lambda: client.result is not None, self.arguments.mission):
            client.cancel()
            self._until(lambda: client.result is not None, ANSWERING)
        result = client.result or Mission.Result(message=TIMEOUT)
        self.mission.end(self._now.stamp, result.success, result.message, tuple(result.answers))
        return self.mission.report(self.monitor.since_began)

    def _put_back(self) -> dict[str, object]:
        """Kill and replace the robot's process, and let it undo the mission; return the result."""
        client = CapsuleClient(self.monitor)
        task = task_of(self.mission) if self.mission else None
        if task is None or self._now is None:
            return {'refused': 'no mission moved anything from the table'}
        if hindrance := self._hindrance(task, self._now):
            return {'refused': hindrance}
        client.ask()
        self._until(lambda: client.refusal is not None, ANSWERING)
        if client.refusal != '':
            return {'refused': client.refusal or 'the robot does not answer'}
        client.save()
        self._until(lambda: client.saved is not None, ANSWERING)
        if client.saved is None or not client.saved.success:
            return {'refused': client.saved.message if client.saved else 'no capsule was taken'}
        recall = self.recall = Recall(task, killed=self._now.stamp)
        self.recording.go_on(recall.killed)
        self.children.remove(self.robot)
        self.robot.process.kill()
        self.robot.process.wait()
        self.monitor.begin_process()
        self.robot = self._start('robot_again', 'nodes.robot', '')
        if not self._until(lambda: self._is_restored(client), self.arguments.timeout):
            reason = client.restored.message if client.restored else 'it did not answer'
            return {'refused': f'the new process did not restore the capsule: {reason}'}
        recall.restored = self._now.stamp
        words = task.phrase(WORD)
        recall.give(self._now, words)
        self.monitor.tell(words)
        self._until(lambda: recall.is_done, SECONDS[task.family] + SETTLE)
        recall.end()
        return recall.report()

    def _is_restored(self, client: CapsuleClient) -> bool:
        client.restore()
        return client.is_restored

    def _errand(self) -> Errand | None:
        """Return a mission of this scene, or of a new one if nothing can be moved here."""
        for number in range(SCENES):
            if number and self._now:
                left = partial(self._has_left, self._now.scene)
                self.monitor.reset()
                if not self._until(left, ANSWERING):
                    return None
                self._until(lambda: False, SETTLE)
            if self._now and (errand := choose_mission(self._now, self._hindrance)):
                return errand
        return None

    def _has_left(self, scene: int) -> bool:
        return self._now is not None and self._now.scene != scene

    def _mission_refusal(self) -> str:
        """Return why no mission is sent, or ''."""
        client = self.mission_client
        if not self.arguments.mission or self._now is None:
            return 'none was requested'
        client.ask()
        self._until(lambda: client.refusal is not None, ANSWERING)
        return UNKNOWN if client.refusal is None else client.refusal

    def _until(self, happened: Callable[[], bool], seconds: float) -> bool:
        """Run the demo until it happened or the time is up; return whether it happened."""
        deadline = time.monotonic() + seconds
        while not happened() and time.monotonic() < deadline:
            self._tick()
            self._direct()
        return happened()

    def _hindrance(self, task: Task, moment: TrueMoment) -> str:
        moment.show_on(self._table)
        return hindrance(task, moment.truth, self._table.sees)

    def draw(self, weights: str, summary: dict[str, str]) -> list[str]:
        """Write frames.png and demo.mp4; return the names of the written files."""
        title = f'Actions and language from one KV cache ({weights} weights)'
        told, note = self.director.told, self.memory_client.line
        with SceneRenderer(task_scene(FAMILY), PICTURE) as renderer:
            cards = make_cards(self.recording, told, renderer)
            draw_storyboard(self.out / 'frames.png', cards, title, note)
        try:
            with SceneRenderer(task_scene(FAMILY), LARGE) as renderer:
                film = self.out / 'demo.mp4'
                draw_film(film, self.recording, told, renderer, summary, self.mission, self.recall)
        except FilmError as error:
            print(f'no demo.mp4: {error}')
            return ['frames.png']
        return ['frames.png', 'demo.mp4']


def _present(demo: Demo, found: dict[str, Any]) -> None:
    """Write all files and print the summary; the suite has ended."""
    text = json.dumps(found, indent=2, ensure_ascii=False)
    (demo.out / 'report.json').write_text(text + '\n')
    summary = summarize(found)
    print('the suite has ended; drawing the pictures and the film', flush=True)
    written = demo.draw(found['weights'], summary)
    for name, line in summary.items():
        print(f'{name:<8} {line}')
    print(f'in {demo.out}: report.json, {", ".join(written)}')


def main() -> None:
    """Run the demo. Exits with 1 and the reason where it fails, with 130 if interrupted."""
    share = Path(get_package_share_directory('embodied_kv'))
    parser = argparse.ArgumentParser(
        prog='python -m embodied_kv.demo', description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        '--seconds',
        type=float,
        default=20.0,
        help='duration (s) from the first command; the task in force may end later',
    )
    parser.add_argument(
        '--episodes', type=int, help='number of tasks, each in a new scene, instead of a duration'
    )
    parser.add_argument('--out', type=Path, default=Path('out/demo'), help='folder to write to')
    parser.add_argument('--namespace', default='demo', help='namespace of suite and robot')
    parser.add_argument('--no-table', action='store_true', help='print lines also in a terminal')
    parser.add_argument('--seed', type=int, help='seed of the first scene')
    parser.add_argument(
        '--timeout', type=float, default=120.0, help='time limit (s) of the first command'
    )
    parser.add_argument(
        '--planner', type=Path, help='folder of the planner, instead of the one in the params file'
    )
    parser.add_argument(
        '--mission',
        type=float,
        help=f'time limit (s) of the mission at the end, {MISSION:g}; 0: none',
    )
    parser.add_argument(
        '--params', default=str(share / 'config' / 'robot.yaml'), help='params file of the robot'
    )
    arguments = parser.parse_args()
    if arguments.episodes is not None and arguments.episodes < 1:
        parser.error(f'--episodes must be at least 1 (got {arguments.episodes})')
    if arguments.seed is None:
        arguments.seed = SEED if arguments.episodes is None else EVALUATION_SEED
    if arguments.mission is None:
        arguments.mission = MISSION if arguments.episodes is None else 0.0
    rclpy.init()
    try:
        with ExitStack() as resources:
            demo = Demo(arguments, resources)
            found = demo.run()
        _present(demo, found)
    except DemoError as error:
        sys.exit(f'demo: {error}')
    except (KeyboardInterrupt, ExternalShutdownException):
        sys.exit(130)
    finally:
        rclpy.try_shutdown()


if __name__ == '__main__':
    main()
