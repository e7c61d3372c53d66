"""Benchmark fleet.serving: a process that does not end takes no figures with it."""

from contextlib import closing

import pytest

from benchmarks.fleet.serving import world
from benchmarks.fleet.serving.world import Fleets

DEAF = """
import sys
from multiprocessing.connection import Connection

connection = Connection(int(sys.argv[1]))
{does}
sys.stdin.read()
"""  # its input is a pipe that nobody closes


@pytest.fixture
def child(monkeypatch, tmp_path):
    """Fleets whose process does something, then ignores the end."""
    popen, made = world.subprocess.Popen, []

    def begin(does):
        def deaf(command, **named):
            code = DEAF.format(does=does)
            command = [command[0], '-c', code, command[-1]]
            made.append(popen(command, stdin=world.subprocess.PIPE, **named))
            return made[-1]

        monkeypatch.setattr(world.subprocess, 'Popen', deaf)
        return Fleets(), made

    monkeypatch.setattr(world, 'ENDING', 0.01)
    yield begin
    for process in made:
        process.kill()
        process.wait()
        process.stdin.close()


def test_a_finished_way_outlives_the_process(child):
    fleets, (process,) = child("connection.recv(); connection.send(('result', [dict(way=1)]))")
    with closing(fleets):
        assert fleets.run({}, None, lambda: None) == dict(way=1)
    assert process.returncode == -9


def test_a_process_that_hangs_up_and_stays_is_named(child):
    fleets, (process,) = child('connection.close()')
    with pytest.raises(RuntimeError, match='the fleet ended with -9'):
        fleets.run({}, None, lambda: None)
    fleets.close()
    assert process.returncode == -9
