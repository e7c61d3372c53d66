"""Serve a policy to openpi's websocket clients, without ROS.

`python -m embodied_kv.serving --contract libero --checkpoint FOLDER`
"""

from __future__ import annotations

import argparse
import logging
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import MISSING, fields
from typing import TypeVar

from embodied_kv.planning.config import PlanningConfig
from embodied_kv.planning.robot_folder import MemoryParams
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.robots.reading import shipped
from embodied_kv.serving.engine_runner import EngineRunner
from embodied_kv.serving.load import load_policy
from embodied_kv.serving.memories import Memories
from embodied_kv.serving.memory_config import MemoryConfig
from embodied_kv.serving.remote import CloudConfig, RemoteEngine
from embodied_kv.serving.scheduling import SchedulingConfig
from embodied_kv.serving.websocket.config import ServedEngineConfig, ServerConfig
from embodied_kv.serving.websocket.server import PolicyServer
from embodied_kv.serving.websocket.sessions import Sessions

T = TypeVar('T')
PREFIX, MEMORY = 'engine.', 'memory.'
KEPT = MemoryConfig, MemoryParams, PlanningConfig


def command() -> argparse.ArgumentParser:
    """Every setting of the server and of its engine is an option."""
    parser = argparse.ArgumentParser(prog='python -m embodied_kv.serving', description=__doc__)
    parser.add_argument(
        '--contract', required=True, help=f'{", ".join(shipped())}, or a YAML file'
    )
    parser.add_argument('--preset', default='', help='model dimensions by name')
    parser.add_argument(
        '--checkpoint', default='', help="folder or file of weights; 'random': untrained ones"
    )
    _add(parser.add_argument_group('server'), ServerConfig, '')
    _add(parser.add_argument_group('scheduling'), SchedulingConfig, '')
    _add(parser.add_argument_group('cloud'), CloudConfig, '')
    memory = parser.add_argument_group('memory')
    for part in KEPT:
        _add(memory, part, MEMORY)
    _add(parser.add_argument_group('engine'), ServedEngineConfig, PREFIX)
    return parser


def main(arguments: Sequence[str] | None = None, wait: Callable[[], object] | None = None) -> None:
    """Serve until SIGINT or SIGTERM; SIGHUP reads keys and certificate again.

    Without keys and a certificate, SIGHUP ends the process. wait: for something else instead.
    """
    parser = command()
    given = vars(parser.parse_args(arguments))
    logging.basicConfig(level=logging.INFO, format='%(levelname)s %(name)s: %(message)s')
    hang_up = signal.getsignal(signal.SIGHUP)
    try:
        config = _read(ServerConfig, '', given)
        scheduling = _read(SchedulingConfig, '', given)
        elsewhere = _read(CloudConfig, '', given)
        memory = tuple(_read(part, MEMORY, given) for part in KEPT)
        settings = _read(ServedEngineConfig, PREFIX, given)
        config.keys()  # refused before anything is loaded, where they cannot be read
        if config.api_keys or config.certificate:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # they are read once the weights are
        embodiment = Embodiment.load(given['contract'])
        policy = load_policy(
            embodiment, given['preset'], given['checkpoint'], settings, print, print
        )
        embodiment.check(policy.config)
        with EngineRunner(policy, settings, say=print) as runner, ExitStack() as closing:
            cloud = elsewhere.open(
                given['preset'], given['checkpoint'], settings, embodiment.contract
            )
            if cloud is not None:
                closing.callback(cloud.close)
            _serve(runner, config, scheduling, cloud, memory, embodiment, wait or _signalled)
    except (ValueError, OSError) as error:
        parser.exit(2, f'{parser.prog}: {error}\n')
    finally:
        signal.signal(signal.SIGHUP, hang_up)


def _serve(
    runner: EngineRunner,
    config: ServerConfig,
    scheduling: SchedulingConfig,
    cloud: RemoteEngine | None,
    memory: tuple[MemoryConfig, MemoryParams, PlanningConfig],
    embodiment: Embodiment,
    wait: Callable[[], object],
) -> None:
    sessions = Sessions(
        runner.engine,
        runner.device,
        scheduling.profile_of(runner.engine.config.robots, runner.profile),
        config.connections,
        config.capsule_mib,
        config.all_capsules_mib,
        scheduling=scheduling,
        cloud=cloud,
    )
    planner = embodiment.contract.language.planner
    memories = Memories.of(*memory, planner, runner.device, sessions.slack, runner.kv_budget)
    server = PolicyServer(config, sessions, embodiment.contract, memories)
    runner.listen(sessions.hear)
    sessions.start()
    if config.api_keys or config.certificate:
        signal.signal(signal.SIGHUP, lambda *_: server.reload())
    try:
        port = server.start()
        address = f'{config.scheme}://{config.host}:{port}'
        print(f'serving {embodiment.contract.robot_type} on {address}', flush=True)
        wait()
    finally:
        server.stop()
        if memories is not None:
            memories.close()
        sessions.stop()


def _signalled() -> None:
    stop = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stop.set())
    stop.wait()


def _add(group: argparse._ArgumentGroup, part: type, prefix: str) -> None:
    for f in fields(part):
        assert f.default is not MISSING, f'{f.name} has no default'
        kind = _truth if isinstance(f.default, bool) else type(f.default)
        text = f.metadata['help'].replace('%', '%%')
        group.add_argument(
            f'--{prefix}{f.name}', type=kind, default=f.default, help=f'{text} ({f.default!r})'
        )


def _read(part: type[T], prefix: str, given: dict[str, object]) -> T:
    """Raises ValueError."""
    for f in fields(part):
        value, (low, high) = given[prefix + f.name], f.metadata.get('range', (None, None))
        if low is not None and not low <= value <= high:
            raise ValueError(f'--{prefix}{f.name} must lie from {low} to {high} (got {value})')
    return part(**{f.name: given[prefix + f.name] for f in fields(part)})


def _truth(text: str) -> bool:
    if text not in ('true', 'false'):
        raise argparse.ArgumentTypeError(f'{text!r}: write true or false')
    return text == 'true'


if __name__ == '__main__':
    main()
