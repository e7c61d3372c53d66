"""`make demo`: the suite and the simulated robot, watched for a while.

Knows processes and a clock. What it shows and reports, it learns from topics and services, as any
other program could (`witness`). Writes report.json and frames.png.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import rclpy
from ament_index_python.packages import get_package_share_directory
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.utilities import get_rmw_implementation_identifier

from embodied_kv.nodes.screen import Screen
from embodied_kv.nodes.storyboard import Card, draw_storyboard
from embodied_kv.nodes.witness import Witness
from embodied_kv.sim.tabletop import Tabletop

CARDS = 6  # frames in the picture
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
        common = ('--params-file', arguments.params, '-r', f'__ns:=/{arguments.namespace}')
        self.children: list[Child] = []
        resources.callback(end, self.children)
        for name, own in (('robot', ()), ('sim', ('-p', f'seed:={arguments.seed}'))):
            self.children.append(Child(name, self.out / f'{name}.log', *common, *own))
        self.table = Tabletop(seed=arguments.seed)
        resources.callback(self.table.close)
        self.witness = Witness(arguments.namespace)
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self.witness)
        self._screen = resources.enter_context(Screen(not arguments.no_table))
        self.cards: list[Card] = []
        self._script = self._write_script()

    def _write_script(self) -> list[tuple[float, Callable[[], None]]]:
        """What is said when, in s since the first command."""
        tell, ask = self.witness.tell, self.witness.ask
        names = [truth.name for truth in self.table.objects()] * 2
        lines = (
            (0.0, tell, f'pick up the {names[0]}'),
            (0.3, ask, f'what is next to the {names[1]}?'),
            (0.35, tell, f'push the {names[1]} to the left'),
            (0.7, tell, f'reach the {names[2]}'),
        )
        return [
            (share * self.arguments.seconds, lambda say=say, line=line: say(line))
            for share, say, line in lines
        ]

    def run(self) -> None:
        """Raises DemoError where nothing comes, or a process ends."""
        self._await_first_command()
        first = time.monotonic() - self.started
        while self.witness.seconds < self.arguments.seconds:
            while self._script and self._script[0][0] <= self.witness.seconds:
                self._script.pop(0)[1]()
            self._tick()
            due = (len(self.cards) + 0.5) / CARDS * self.arguments.seconds
            if self.witness.seconds >= due and (card := self.witness.card()):
                self.cards.append(card)
        self._write(first)

    def _await_first_command(self) -> None:
        while self.witness.began is None:
            self._tick()
            waited = time.monotonic() - self.started
            if waited > self.arguments.timeout:
                words = '\n'.join(child.last_words() for child in self.children)
                raise DemoError(f'no action within {self.arguments.timeout:.0f} s\n{words}')

    def _tick(self) -> None:
        self._executor.spin_once(timeout_sec=0.1)
        if not rclpy.ok():
            raise KeyboardInterrupt
        if self._screen.due():
            for child in self.children:
                child.check()
            self.witness.poll()
            self._screen.show(self.witness, time.monotonic() - self.started)

    def _write(self, first: float) -> None:
        report = {
            'seconds from start to first command': round(first, 2),
            **self.witness.report(),
            'machine': machine(),
        }
        text = json.dumps(report, indent=2, ensure_ascii=False)
        (self.out / 'report.json').write_text(text + '\n')
        title = f'Actions and words from one KV cache ({self.witness.weights} weights)'
        draw_storyboard(self.out / 'frames.png', self.cards, self.table, title)


def machine() -> dict[str, object]:
    """What this ran on."""
    cpu = platform.processor()
    if (info := Path('/proc/cpuinfo')).exists():
        names = [line for line in info.read_text().splitlines() if line.startswith('model name')]
        cpu = names[0].partition(': ')[2] if names else cpu
    return {
        'cpu': cpu,
        'cores': len(os.sched_getaffinity(0)),
        'load average': os.getloadavg()[0],
        'system': platform.platform(),
        'python': platform.python_version(),
        'ros': os.environ.get('ROS_DISTRO', 'unknown'),
        'rmw': get_rmw_implementation_identifier(),
    }


def main() -> None:
    """Run the demo. Exits with 1 and the reason where it fails, with 130 if interrupted."""
    share = Path(get_package_share_directory('embodied_kv'))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--seconds', type=float, default=20.0, help='from the first command on')
    parser.add_argument('--out', type=Path, default=Path('out/demo'), help='folder to write to')
    parser.add_argument('--namespace', default='demo', help='of the suite and the robot')
    parser.add_argument('--no-table', action='store_true', help='lines, also in a terminal')
    parser.add_argument('--seed', type=int, default=0, help='of the scene')
    parser.add_argument('--timeout', type=float, default=120.0, help='s until the first command')
    parser.add_argument('--params', default=str(share / 'config' / 'robot.yaml'))
    arguments = parser.parse_args()
    rclpy.init()
    try:
        with ExitStack() as resources:
            Demo(arguments, resources).run()
    except DemoError as error:
        sys.exit(f'demo: {error}')
    except (KeyboardInterrupt, ExternalShutdownException):
        sys.exit(130)
    finally:
        rclpy.try_shutdown()
    print(f'wrote {arguments.out / "report.json"} and {arguments.out / "frames.png"}')


if __name__ == '__main__':
    main()
