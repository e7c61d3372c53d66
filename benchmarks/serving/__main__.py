"""The policy server: client latency by number of clients, with batching and one at a time.

Clients in processes of their own use openpi's protocol over a socket and send the next request,
with two images of 224², as soon as they have the reply. `batched` is the server as shipped;
`alone` is the same server with an engine that takes one robot at a time. Both serve the same
clients in turn. A miss is a reply later than `--period`. The overhead is the time that a single
client waits beyond the engine's own call for one frame on the engine's thread: the median of pairs
of alternating calls, with its 95% interval.

Physics: a closed loop of n clients gets n / latency requests per second. A request has 2 * 224² *
3 bytes, 0.3 MB, which a local socket transfers in well under a millisecond. One at a time, a
client waits for n - 1 others. In a batch it waits for the previous batch and its own, and a batch
costs less than its frames do alone where the weights are read from memory once for all of them: on
a GPU, or on a CPU with spare cores.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np

from benchmarks.common import report
from benchmarks.common.command import BenchmarkError, add_engine, command
from benchmarks.common.workers import received
from benchmarks.serving.client import PATIENCE, WARM, ask, connected, once
from embodied_kv.config import preset
from embodied_kv.engine_config import EngineConfig
from embodied_kv.fleet.profile import Profile
from embodied_kv.model.policy import Policy
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.serving.batch import serve
from embodied_kv.serving.engine_runner import EngineRunner
from embodied_kv.serving.websocket import codec
from embodied_kv.serving.websocket.calls import Call, observation
from embodied_kv.serving.websocket.config import ServerConfig
from embodied_kv.serving.websocket.observation_parser import ObservationParser
from embodied_kv.serving.websocket.server import PolicyServer
from embodied_kv.serving.websocket.sessions import Sessions

SIDE = 224  # pixels
CONTRACT = 'tabletop'


def request(contract: str, seed: int) -> dict:
    """Return an observation of a client of this robot."""
    random, client = np.random.default_rng(seed), Embodiment.load(contract).contract.clients
    pictures = {
        key: random.integers(0, 256, (SIDE, SIDE, 3), np.uint8) for key in client.views.values()
    }
    state = {key: random.uniform(-0.1, 0.1, count) for key, count in client.state.items()}
    return pictures | state | {'prompt': 'pick up the red cube'}


@contextmanager
def served(runner: EngineRunner, profile: Profile, robot: Embodiment, most: int) -> Iterator[int]:
    """Yield the port of a server around an engine. most: robots of a batch."""
    if most == 1:
        profile = replace(profile, sizes=profile.sizes[:1], seconds=profile.seconds[:1])
    sessions = Sessions(runner.engine, runner.device, profile, 64, 0)
    config = ServerConfig(port=0, max_request_rate=10_000.0, request_timeout=PATIENCE)
    server = PolicyServer(config, sessions, robot.contract)
    runner.deltas.listen(sessions.on_deltas)
    sessions.start()
    try:
        yield server.start()
    finally:
        server.stop()
        sessions.stop()
        runner.deltas.unlisten(sessions.on_deltas)


def measure(port: int, clients: int, count: int, period: float) -> dict[str, float]:
    """Return latencies (ms) and requests per second of so many clients at once.

    count: requests of each client. Raises BenchmarkError if a client fails.
    """
    spawn = multiprocessing.get_context('spawn')
    ready, answers = spawn.Barrier(clients), spawn.Queue()
    processes = [
        spawn.Process(target=ask, args=(port, message, count, ready, answers), daemon=True)
        for message in (codec.pack(request(CONTRACT, n)) for n in range(clients))
    ]
    for process in processes:
        process.start()
    each = [received(answers, *processes) for _ in processes]
    for process in processes:
        process.join()
    if failed := [one for one in each if isinstance(one, str)]:
        raise BenchmarkError(failed[0])
    seconds = np.concatenate(each)
    p50, p95, p99 = np.percentile(seconds, [50, 95, 99]) * 1e3
    return {
        'p50_ms': float(p50),
        'p95_ms': float(p95),
        'p99_ms': float(p99),
        'requests_s': float(sum(count / sum(one) for one in each)),
        'misses': float((seconds > period).mean()),
    }


def alone(runner: EngineRunner, robot: Embodiment, port: int, count: int) -> np.ndarray:
    """Return ms [count, 2] of the engine's own call and of a client's request, measured in turn.

    The engine's own call takes images and returns a chunk.
    """
    asked, taken = request(CONTRACT, 0), []
    seen, message = ObservationParser(robot.contract).read(asked), codec.pack(asked)
    with connected(port) as socket:
        for number in range(WARM + count):
            frame = observation(runner.engine, seen, Call(), 'own', number, 0.0, '')
            began = time.monotonic()
            work = partial(serve, runner.engine, [frame], math.inf)
            runner.device.call(work).result()
            taken.append((time.monotonic() - began, once(socket, message)))
    return np.array(taken[WARM:]) * 1e3


def median(values: np.ndarray) -> tuple[float, float, float]:
    """Return the median of values [n], and its 95% interval by rank: n / 2 ± 0.98 sqrt(n)."""
    order, n = np.sort(values), len(values)
    reach = 0.98 * math.sqrt(n)
    low, high = max(0, math.floor(n / 2 - reach)), min(n - 1, math.ceil(n / 2 + reach))
    return float(np.median(order)), float(order[low]), float(order[high])


def run(args: argparse.Namespace) -> dict:
    """Measure every number of clients in both ways in turn, and return all figures."""
    if args.quick:
        args.clients, args.requests = [1, 4], 20
    if min(args.clients) < 1 or max(args.clients) > 64 or args.requests < 1:
        raise BenchmarkError('from 1 to 64 clients, and at least one request of each')
    robot = Embodiment.load(CONTRACT)
    config = EngineConfig(
        max_batch_robots=args.batch,
        rows=2 * args.batch + max(args.clients),
        reserved_rows=args.batch,
        streams=1,
        compressed_rows=0,
        device=args.device,
        threads=args.threads,
    )
    policy = Policy.random(robot.adapted(preset(args.preset)), 0, args.device)
    rows = []
    with EngineRunner(policy, config) as runner:
        profile = runner.profile()
        with served(runner, profile, robot, args.batch) as port:
            pairs = alone(runner, robot, port, args.requests)
        for clients in args.clients:
            for way, most in (('batched', args.batch), ('alone', 1)):
                with served(runner, profile, robot, most) as port:
                    found = measure(port, clients, args.requests, args.period)
                rows.append({'clients': clients, 'way': way} | found)
    ways = {(row['clients'], row['way']): row for row in rows}
    ratios = {
        n: ways[n, 'batched']['requests_s'] / ways[n, 'alone']['requests_s'] for n in args.clients
    }
    own, overhead = float(np.median(pairs[:, 0])), median(pairs[:, 1] - pairs[:, 0])
    if not args.json:
        middle, low, high = overhead
        note = f'the engine alone: {own:.1f} ms; one client waits {middle:.2f} ms longer'
        report.show(f'policy server, {args.preset}', rows, f'{note} ({low:.2f} to {high:.2f})')
    return dict(preset=args.preset, own_ms=own, overhead_ms=overhead, rows=rows, batched=ratios)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine(parser, 'tabletop')
    parser.add_argument('--clients', type=int, nargs='+', default=[1, 2, 4, 8, 16, 32])
    parser.add_argument('--requests', type=int, default=100, help='of each client')
    parser.add_argument('--batch', type=int, default=8, help='robots of a batch, at most')
    parser.add_argument('--period', type=float, default=0.1, help='s, later is a miss')
    parser.add_argument('--quick', action='store_true', help='1 and 4 clients, 20 requests')


main = command('serving', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
