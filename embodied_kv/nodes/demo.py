"""`make demo`: the suite and the simulated robot, given tasks and watched for a while.

Knows processes and a clock. What it shows and reports, it learns from topics and services, as any
other program could (`witness`); what it tells, a `director` decides. Writes report.json and
frames.png.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import rclpy
import yaml
from ament_index_python.packages import get_package_share_directory
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor

from embodied_kv.nodes.director import Director
from embodied_kv.nodes.recall import Recall
from embodied_kv.nodes.report import report
from embodied_kv.nodes.score import SAY, Score
from embodied_kv.nodes.screen import Screen
from embodied_kv.nodes.storyboard import Card, draw_storyboard
from embodied_kv.nodes.witness import Witness
from embodied_kv.sim.tabletop import Tabletop
from embodied_kv.sim.tasks import task_scene

FAMILY = 'put'  # scenes of it have tasks of all four
# Scenes below 1,000,000 are those of training; the next but one is the first with five objects.
SEED, EVALUATION_SEED = 1_000_001, 2_000_000
CARDS = 6  # tasks in the picture
REMEMBERING = 5.0  # s that memory may take to answer
PATIENCE = {signal.SIGINT: 5.0, signal.SIGTERM: 3.0, signal.SIGKILL: 3.0}  # s, in this order


class DemoError(Exception):
    """Why the demo cannot go on; meant for the user."""


class Child:
    """A process of ours, its output in a file."""

    def __init__(self, name: str, log: Path, *arguments: str) -> None:
        self.name, self.log = name, log
        command = [sys.executable, '-m', f'embodied_kv.nodes.{name}', '--ros-args', *arguments]
        with log.open('wb') as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    def check(self) -> None:
        """Raises DemoError, with its last words, if it has ended."""
        code = self._process.poll()
        if code is not None:
            raise DemoError(f'{self.name} has ended with {code}: {self.last_words()}')

    def last_words(self) -> str:
        """The last lines of its log."""
        lines = self.log.read_text(errors='replace').splitlines()[-12:]
        return '\n  '.join([f'{self.log} ends with', *lines])

    def ask_to_end(self, number: signal.Signals) -> None:
        """Send the signal, if it still runs."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def ends_until(self, deadline: float) -> bool:
        """Whether it has ended by then, s on the steady clock."""
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True


def end(children: Sequence[Child]) -> None:
    """All of them, by their ids: asked twice, then made to."""
    for number, patience in PATIENCE.items():
        for child in children:
            child.ask_to_end(number)
        deadline = time.monotonic() + patience
        if all([child.ends_until(deadline) for child in children]):
            return


class Demo:
    """One run. arguments: what the command line said."""

    def __init__(self, arguments: argparse.Namespace, resources: ExitStack) -> None:
        self.arguments, self.out = arguments, arguments.out
        self.out.mkdir(parents=True, exist_ok=True)
        self.started = time.monotonic()
        files = ('--params-file', arguments.params, '--params-file', self._own_parameters())
        common = (*files, '-r', f'__ns:=/{arguments.namespace}')
        self.children: list[Child] = []
        resources.callback(end, self.children)
        for name in ('robot', 'sim'):
            self.children.append(Child(name, self.out / f'{name}.log', *common))
        self.witness = Witness(arguments.namespace, task_scene(FAMILY))
        self.director = Director(
            arguments.seed,
            tell=self.witness.tell,
            ask=self.witness.ask,
            reset=self.witness.reset,
            fresh=arguments.episodes is not None,
        )
        self.score = Score(self.director.task_at)
        self.recall = Recall(self.witness)
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self.witness)
        self._screen = resources.enter_context(Screen(not arguments.no_table))
        self._cards: dict[int, Card] = {}  # number of the task -> the newest of its frames

    def _own_parameters(self) -> str:
        """A file of what is other in a demo: its scenes, and a memory that begins empty.

        `-p` would yield to the params file.
        """
        own = {
            'sim': {'seed': self.arguments.seed, 'family': FAMILY, 'truth': True},
            'memory': {'folder': ''},
        }
        values = {f'/**/{node}': {'ros__parameters': values} for node, values in own.items()}
        path = self.out / 'demo.yaml'
        path.write_text(yaml.safe_dump(values))
        return str(path)

    def run(self) -> str:
        """What came of it, in a line. Raises DemoError where nothing comes, or a process ends."""
        self._await_first_command()
        first = time.monotonic() - self.started
        while not self._is_over():
            self._tick()
            self._direct()
        self._remember()
        return self._write(first)

    def _is_over(self) -> bool:
        if self.arguments.episodes is not None:
            return len(self.director.judged) >= self.arguments.episodes
        return self.witness.seconds >= self.arguments.seconds

    def _await_first_command(self) -> None:
        while self.witness.began is None:
            self._tick()
            waited = time.monotonic() - self.started
            if waited > self.arguments.timeout:
                words = '\n'.join(child.last_words() for child in self.children)
                raise DemoError(f'no action within {self.arguments.timeout:.0f} s\n{words}')
        self.witness.moments.clear()

    def _tick(self) -> None:
        try:
            self._executor.spin_once(timeout_sec=0.1)
        except ValueError as error:  # the truth is that of another robot
            raise DemoError(str(error)) from error
        if not rclpy.ok():
            raise KeyboardInterrupt
        if self._screen.due():
            for child in self.children:
                child.check()
            self.witness.poll()
            self._screen.show(self.witness, self.director, time.monotonic() - self.started)

    def _direct(self) -> None:
        """Hand on what is new."""
        while self.witness.moments:
            moment = self.witness.moments.popleft()
            self.director.see(moment)
            self.score.see(moment)
            self._picture()
        while self.witness.ended:
            words = self.witness.ended.popleft()
            self.score.hear(words.stamp, words.query, words.text)

    def _remember(self) -> None:
        """Ask memory where something is: the last that was put somewhere, if anything was."""
        told = self.director.told
        done = [one for one in told if one.done and one.task.place]
        if not told:
            return
        self.recall.ask(f'Where is the {(done or told)[-1].task.target}?')
        deadline = time.monotonic() + REMEMBERING
        while not self.recall.is_over and time.monotonic() < deadline:
            self._tick()

    def _picture(self) -> None:
        """Keep the newest frame of the task: in the end, the one just before it was done."""
        told, number = self.director.current, len(self.director.told) - 1
        if told is None or number >= CARDS:
            return
        said = [words for query, words in self.witness.newest.items() if query in SAY]
        newest = max(said, key=lambda words: words.stamp, default=None)
        card = self.witness.card(told.scene, f'{newest.query} {newest.text}' if newest else '')
        if card:
            self._cards[number] = card

    def _write(self, first: float) -> str:
        done = {
            'seconds from start to first command': round(first, 2),
            **report(self.witness, self.director, self.score),
            'memory': self.recall.report(),
        }
        text = json.dumps(done, indent=2, ensure_ascii=False)
        (self.out / 'report.json').write_text(text + '\n')
        told, weights = self.director.told, self.witness.weights
        cards = [replace(card, done=told[i].done) for i, card in self._cards.items()]
        title = f'Actions and words from one KV cache ({weights} weights)'
        with Tabletop(task_scene(FAMILY)) as table:
            draw_storyboard(self.out / 'frames.png', cards, table, title, self.recall.line)
        line = '{done} of {told} tasks done'.format(**done['tasks done'])
        return f'{line}: the weights are random, none is expected' if weights == 'random' else line


def main() -> None:
    """Run the demo. Exits with 1 and the reason where it fails, with 130 if interrupted."""
    share = Path(get_package_share_directory('embodied_kv'))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--seconds', type=float, default=20.0, help='from the first command on')
    parser.add_argument(
        '--episodes', type=int, help='instead: until so many tasks, each in a new scene, are over'
    )
    parser.add_argument('--out', type=Path, default=Path('out/demo'), help='folder to write to')
    parser.add_argument('--namespace', default='demo', help='of the suite and the robot')
    parser.add_argument('--no-table', action='store_true', help='lines, also in a terminal')
    parser.add_argument('--seed', type=int, help='of the first scene')
    parser.add_argument('--timeout', type=float, default=120.0, help='s until the first command')
    parser.add_argument('--params', default=str(share / 'config' / 'robot.yaml'))
    arguments = parser.parse_args()
    if arguments.episodes is not None and arguments.episodes < 1:
        parser.error('--episodes is at least 1')
    if arguments.seed is None:
        arguments.seed = SEED if arguments.episodes is None else EVALUATION_SEED
    rclpy.init()
    try:
        with ExitStack() as resources:
            summary = Demo(arguments, resources).run()
    except DemoError as error:
        sys.exit(f'demo: {error}')
    except (KeyboardInterrupt, ExternalShutdownException):
        sys.exit(130)
    finally:
        rclpy.try_shutdown()
    print(summary)
    print(f'wrote {arguments.out / "report.json"} and {arguments.out / "frames.png"}')


if __name__ == '__main__':
    main()
