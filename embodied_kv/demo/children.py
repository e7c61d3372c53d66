"""The child processes of the demo, which end with it in every case."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

PATIENCE = {signal.SIGINT: 5.0, signal.SIGTERM: 3.0, signal.SIGKILL: 3.0}  # s, in this order


class DemoError(Exception):
    """Error: the demo cannot continue. The message is for the user."""


class Child:
    """A child process with its output in a file."""

    def __init__(self, name: str, module: str, log: Path, *arguments: str) -> None:
        self.name, self.log = name, log
        command = [sys.executable, '-m', f'embodied_kv.{module}', '--ros-args', *arguments]
        with log.open('wb') as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    def check(self) -> None:
        """Raise DemoError, with the end of the log, if the process has ended."""
        code = self._process.poll()
        if code is not None:
            raise DemoError(f'process {self.name} ended with status {code}: {self.log_end()}')

    def log_end(self) -> str:
        """Return the last lines of the log."""
        lines = self.log.read_text(errors='replace').splitlines()[-12:]
        return '\n  '.join([f'{self.log} ends with', *lines])

    def send_signal(self, number: signal.Signals) -> None:
        """Send the signal, if the process runs."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def wait_until(self, deadline: float) -> bool:
        """Return whether the process ended by the deadline (s, steady clock)."""
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True


def end(children: Sequence[Child]) -> None:
    """End all processes, by SIGINT, SIGTERM and at last SIGKILL."""
    for number, patience in PATIENCE.items():
        for child in children:
            child.send_signal(number)
        deadline = time.monotonic() + patience
        if all([child.wait_until(deadline) for child in children]):
            return
