"""Processes of the demo's own: started, watched, and ended in every case.

Knows executables of this package and signals. Does not know ROS.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

PATIENCE = {signal.SIGINT: 5.0, signal.SIGTERM: 3.0, signal.SIGKILL: 3.0}  # s, in this order


class DemoError(Exception):
    """Why the demo cannot go on; meant for the user."""


class Child:
    """A process of ours, its output in a file."""

    def __init__(self, name: str, module: str, log: Path, *arguments: str) -> None:
        self.name, self.log = name, log
        command = [sys.executable, '-m', f'embodied_kv.{module}', '--ros-args', *arguments]
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
