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
from typing import Any, TypeVar, cast

from embodied_kv.planning.config import MemoryParams, PlanningConfig
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.robots.reading import shipped
from embodied_kv.serving.engine_runner import EngineRunner
from embodied_kv.serving.load import load_policy
from embodied_kv.serving.memories import MemoryConfig
from embodied_kv.serving.ray_engine import CloudConfig
from embodied_kv.serving.scheduling import SchedulingConfig
from embodied_kv.serving.websocket.config import ServedEngineConfig, ServerConfig
from embodied_kv.serving.websocket.server import open_server

T = TypeVar('T')
PREFIX, MEMORY = 'engine.', 'memory.'
KEPT = MemoryConfig, MemoryParams, PlanningConfig


def command() -> argparse.ArgumentParser:
    """Return the parser, which has each setting of the server and of its engine as an option."""
    parser = argparse.ArgumentParser(prog='python -m embodied_kv.serving', description=__doc__)
    parser.add_argument(
        '--contract', required=True, help=f'{", ".join(shipped())}, or a YAML file'
    )
    parser.add_argument('--preset', default='', help='model dimensions by name')
    parser.add_argument(
        '--checkpoint',
        default='',
        help='folder or file of weights, or owner/name@revision of the Hugging Face hub; '
        "'random': untrained ones",
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
    """Serve until SIGINT or SIGTERM; SIGHUP reloads keys and certificate.

    If neither is configured, SIGHUP ends the process. `wait` replaces the wait for a signal.
    """
    parser = command()
    given = vars(parser.parse_args(arguments))
    logging.basicConfig(level=logging.INFO, format='%(levelname)s %(name)s: %(message)s')
    hang_up = signal.getsignal(signal.SIGHUP)
    try:
        config = _read(ServerConfig, '', given)
        scheduling = _read(SchedulingConfig, '', given)
        elsewhere = _read(CloudConfig, '', given)
        memory = (
            _read(MemoryConfig, MEMORY, given),
            _read(MemoryParams, MEMORY, given),
            _read(PlanningConfig, MEMORY, given),
        )
        settings = _read(ServedEngineConfig, PREFIX, given)
        config.keys()  # an unreadable file is an error before the weights are loaded
        if config.api_keys_file or config.certificate:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the server can reload them
        embodiment = Embodiment.load(given['contract'])
        policy = load_policy(
            embodiment, given['preset'], given['checkpoint'], settings, print, print
        )
        embodiment.check(policy.config)
        with EngineRunner(policy, settings, say=print) as runner, ExitStack() as closing:
            contract = embodiment.contract
            resolved = runner.engine.config  # with the memory rows of the policy
            cloud = elsewhere.open(given['preset'], given['checkpoint'], resolved, contract)
            if cloud is not None:
                closing.callback(cloud.close)
            profile = scheduling.profile_of(runner.engine.config.max_batch_robots, runner.profile)
            server = closing.enter_context(
                open_server(runner, profile, contract, config, scheduling, memory, cloud, print)
            )
            if config.api_keys_file or config.certificate:
                signal.signal(signal.SIGHUP, lambda *_: server.reload())
            address = f'{config.scheme}://{config.host}:{server.port}'
            print(f'serving {contract.robot_type} on {address}', flush=True)
            (wait or _signalled)()
    except (ValueError, OSError) as error:
        parser.exit(2, f'{parser.prog}: {error}\n')
    finally:
        signal.signal(signal.SIGHUP, hang_up)


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
        for old in f.metadata.get('old', ()):
            group.add_argument(f'--{prefix}{old}', action=_Renamed, const=f'--{prefix}{f.name}')


def _read(part: type[T], prefix: str, given: dict[str, Any]) -> T:
    settings = fields(cast(Any, part))
    for f in settings:
        value, (low, high) = given[prefix + f.name], f.metadata.get('range', (None, None))
        if low is not None and not low <= value <= high:
            raise ValueError(f'--{prefix}{f.name} must be from {low} to {high} (got {value})')
    return part(**{f.name: given[prefix + f.name] for f in settings})


class _Renamed(argparse.Action):
    """Rejects an option under its former name; `const` is its present name."""

    def __init__(self, option_strings: Sequence[str], dest: str, const: str) -> None:
        nothing = argparse.SUPPRESS
        super().__init__(option_strings, nothing, const=const, default=nothing, help=nothing)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: object,
        values: object,
        option: str | None = None,
    ) -> None:
        parser.error(f'option {option} was renamed; use {self.const}')


def _truth(text: str) -> bool:
    if text not in ('true', 'false'):
        raise argparse.ArgumentTypeError(f'must be true or false (got {text!r})')
    return text == 'true'


if __name__ == '__main__':
    main()
