"""Misbehaving clients of a policy server: their effect on good clients, and what they leave over.

A policy server runs in this process, some good clients in a second one, and a group of misbehaving
clients ("the mob") in a third. They connect, disconnect, stall, flood, send oversized images and
send invalid messages. The good clients send a request once a period, first alone ("quiet"), then
together with the mob. In the meantime the server is inspected once a second. Once all clients have
gone, it must have no more than at the start of: sessions, robots, leased rows, decode streams,
tasks, sockets, descriptors, threads. Its memory must not have grown by more than a tenth since the
first third. If one of these rules is violated, the command names it, and its exit status is 1. The
latency of the good clients is no rule but an aim, because it depends on the machine: if the aim is
missed, the command reports it, and its exit status stays 0.

Physics: the engine's time is shared. The valid requests of the mob are served too, in batches with
those of the others, so p99 next to the mob is that of a fuller batch and of the batch before it:
about twice that of quiet, where a batch costs little more than one frame; more, where each frame
costs the engine its whole time, and where the mob takes processor cores from the server.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Sequence

import numpy as np

from benchmarks.common import report
from benchmarks.common.command import BenchmarkError, add_engine, command
from benchmarks.common.workers import check_status, received
from benchmarks.serving.__main__ import CONTRACT, request
from benchmarks.serving.mob import behave, riot
from embodied_kv.config import preset
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model.policy import Policy
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.serving.engine_runner import EngineRunner
from embodied_kv.serving.websocket import codec
from embodied_kv.serving.websocket.config import MIB, ServerConfig
from embodied_kv.serving.websocket.server import PolicyServer
from embodied_kv.serving.websocket.sessions import Sessions

GOOD = 4  # clients
GROWTH = 0.1  # maximum growth of the memory
RATIO = 2.0  # aim: maximum ratio of p99 next to the mob to that of quiet
REST = 120.0  # s within which everything that the mob held has to be free
QUIET = 0.2  # duration of quiet as a share of the mob's
WARM = 2.0  # s
LIMITS = ServerConfig(
    port=0,
    max_connections=128,
    max_message_mib=16,
    max_request_rate=20.0,
    client_timeout=5.0,
    session_capsules_mib=1,
    all_capsules_mib=8,
)


class Watch:
    """Counts what a server holds, by name."""

    def __init__(self, runner: EngineRunner, sessions: Sessions, server: PolicyServer) -> None:
        self._runner, self._sessions, self._server = runner, sessions, server

    def look(self) -> dict[str, int]:
        """Return the present counts."""
        kv, values = self._runner.engine.kv, self._sessions.values()
        return {
            'sessions': values['sessions'],
            'robots': values['robots'],
            'leases': kv.stats().leases,
            'streams': len(kv.streams.live()),
            **self._server.counts(),
            'threads': threading.active_count(),
            'descriptors': len(os.listdir('/proc/self/fd')),
        }

    def rests(self, before: dict[str, int]) -> dict[str, int]:
        """Wait until the counts are at most those before, for at most REST, and return them."""
        end = time.monotonic() + REST
        while True:
            now = self.look()
            if all(now[name] <= before[name] for name in before) or time.monotonic() > end:
                return now
            time.sleep(0.2)


def resident() -> float:
    """Return the resident memory (MiB) of this process."""
    with open('/proc/self/statm') as statm:
        return int(statm.read().split()[1]) * os.sysconf('SC_PAGE_SIZE') / MIB


def run(args: argparse.Namespace) -> dict:
    """Run quiet, then chaos, then wait for rest, and return all figures."""
    if args.quick:
        args.seconds = 20.0
    if args.clients < 1 or args.seconds <= 0:
        raise BenchmarkError('at least one client, and some seconds')
    robot = Embodiment.load(CONTRACT)
    config = EngineConfig(
        max_batch_robots=8,
        rows=96,
        reserved_rows=64,
        streams=8,
        compressed_rows=0,
        device=args.device,
        threads=args.threads,
    )
    policy = Policy.random(robot.adapted(preset(args.preset)), 0, args.device)
    with EngineRunner(policy, config) as runner:
        c = LIMITS
        sessions = Sessions(
            runner.engine,
            runner.device,
            runner.profile(),
            c.max_connections,
            c.session_capsules_mib,
            c.all_capsules_mib,
        )
        server = PolicyServer(c, sessions, robot.contract)
        runner.deltas.listen(sessions.on_deltas)
        sessions.start()
        try:
            found = _measured(args, server.start(), Watch(runner, sessions, server))
        finally:
            server.stop()
            sessions.stop()
        runner.engine.kv.check_integrity()
    if not args.json:
        _show(args, found)
    return found


def _measured(args: argparse.Namespace, port: int, watch: Watch) -> dict:
    spawn, message = multiprocessing.get_context('spawn'), codec.pack(request(CONTRACT, 0))
    answers, news = spawn.Queue(), spawn.Queue()

    def good(seconds: float) -> multiprocessing.Process:
        given = port, message, GOOD, seconds, args.period, answers
        return _started(spawn.Process(None, behave, 'good clients', given, daemon=True))

    def bad(seconds: float) -> multiprocessing.Process:
        given = port, message, args.clients, seconds, args.seed, news
        return _started(spawn.Process(None, riot, 'the mob', given, daemon=True))

    for process, queue in ((good(WARM), answers), (bad(WARM), news)):
        received(queue, process)  # warm-up: one-time allocations
        _over(process)
    before = watch.rests(dict.fromkeys(('sessions', 'sockets'), 0))
    process = good(max(2.0, QUIET * args.seconds))
    quiet, faults = received(answers, process)
    _over(process)
    mob = bad(args.seconds)
    process, most, memory = good(args.seconds), dict(before), []
    while mob.is_alive() and news.empty():
        most = {name: max(most[name], count) for name, count in watch.look().items()}
        memory.append(resident())
        time.sleep(min(1.0, args.seconds / 20))
    done = received(news, mob)
    chaos, more = received(answers, process)
    for one in (mob, process):
        _over(one)
    after = watch.rests(before)
    left = {name: after[name] - before[name] for name in before if after[name] > before[name]}
    early = max(memory[: max(1, len(memory) // 3)])
    growth = resident() / early - 1
    broken = [f'{count} {name} are left over' for name, count in left.items()]
    broken += [f'a good client failed: {fault}' for fault in (*faults, *more)]
    if growth > GROWTH:
        broken.append(f'memory has grown by {growth:.0%}')
    ratio = _figures(chaos)['p99_ms'] / _figures(quiet)['p99_ms']
    return {
        'preset': args.preset,
        'clients': args.clients,
        'seconds': args.seconds,
        'done': done,
        'quiet': _figures(quiet),
        'chaos': _figures(chaos),
        'p99_ratio': ratio,
        'before': before,
        'most': most,
        'after': after,
        'resident_mib': {'early': early, 'end': resident()},
        'growth': growth,
        'broken': broken,
        'missed': _missed(ratio),
    }


def _missed(ratio: float) -> list[str]:
    """Return the aims that were missed."""
    if ratio <= RATIO:
        return []
    return [f'p99 beside the mob is {ratio:.1f} times that of quiet: the aim is {RATIO:g}']


def _started(process: multiprocessing.Process) -> multiprocessing.Process:
    process.start()
    return process


def _over(process: multiprocessing.Process) -> None:
    """Wait for the end of a process, check its exit status, and release it."""
    process.join()
    check_status(process.name, process.exitcode)
    process.close()


def _figures(seconds: list[float]) -> dict[str, float]:
    if not seconds:
        raise BenchmarkError('the good clients were not served')
    p50, p99 = np.percentile(seconds, [50, 99]) * 1e3
    return {'replies': len(seconds), 'p50_ms': float(p50), 'p99_ms': float(p99)}


def _show(args: argparse.Namespace, found: dict) -> None:
    rows = [{'when': when} | found[when] for when in ('quiet', 'chaos')]
    note = f'p99 beside the mob: {found["p99_ratio"]:.1f} times that of quiet; {found["done"]}'
    report.show(f'{GOOD} good clients of a policy server, {args.preset}', rows, note)
    times = 'before', 'most', 'after'
    held = [{'what': n} | {t: found[t][n] for t in times} for n in found['before']]
    note = f'memory {found["growth"]:+.1%} since the first third'
    report.show('what it holds', held, note)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine(parser, 'tabletop')
    parser.add_argument('--clients', type=int, default=50, help='of the mob')
    parser.add_argument('--seconds', type=float, default=600.0, help='that the mob has')
    parser.add_argument('--period', type=float, default=0.2, help='s between two requests of one')
    parser.add_argument('--seed', type=int, default=0, help='of what the mob does')
    parser.add_argument('--quick', action='store_true', help='20 s')


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; the exit status is 1 if a rule is violated, not if an aim is missed."""
    broken: list[str] = []
    missed: list[str] = []

    def judged(args: argparse.Namespace) -> dict:
        found = run(args)
        broken.extend(found['broken'])
        missed.extend(found['missed'])
        return found

    command('serving.chaos', __doc__, add_arguments, judged)(arguments)
    for aim in missed:
        print(f'serving.chaos: missed: {aim}', file=sys.stderr)
    if broken:
        raise SystemExit('\n'.join(['serving.chaos: broken laws', *broken]))


if __name__ == '__main__':
    main()
