"""Compile the computations of the engine of a suite ahead of time.

`python -m embodied_kv.nodes.compile --params FILE` skips computations that are compiled already.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import yaml
from ament_index_python.packages import get_package_share_directory

from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig
from embodied_kv.nodes.common.parameters import SuiteParams
from embodied_kv.serving.load import load_policy

DOTTED = 'engine.'  # ROS accepts `engine.rtc: x` and `engine: {rtc: x}`


def parameters(path: Path) -> tuple[SuiteParams, EngineConfig]:
    """Return the parameters in section `/**` of a file. Raises ValueError, OSError."""
    try:
        values = yaml.safe_load(path.read_text())['/**']['ros__parameters']
        suite = {f.name: values[f.name] for f in fields(SuiteParams) if f.name in values}
        engine = dict(values.get('engine', {}))
        engine |= {k.removeprefix(DOTTED): v for k, v in values.items() if k.startswith(DOTTED)}
        return SuiteParams(**suite), EngineConfig(**engine)
    except (yaml.YAMLError, TypeError, KeyError) as error:
        raise ValueError(f'{path} must contain ROS parameters of a suite: {error}') from error


def main(arguments: Sequence[str] | None = None) -> None:
    """Trace and compile the computations of the engine."""
    share = Path(get_package_share_directory('embodied_kv'))
    command = argparse.ArgumentParser(prog='python -m embodied_kv.nodes.compile')
    command.description = __doc__
    command.add_argument('--params', type=Path, default=share / 'config' / 'robot.yaml')
    args = command.parse_args(arguments)
    try:
        suite, config = parameters(args.params)
        if config.compile == 'off':
            command.exit(2, 'compile: engine.compile must be auto or now (got off)\n')
        config = replace(config, compile='auto')
        policy = load_policy(
            suite.embodiment(), suite.preset, suite.checkpoint, config, print, print
        )
        graphs = Engine(policy, config, suite.period, say=print).graphs
        names = [*graphs.compiled_names, *graphs.compile_now(partial(print, flush=True))]
    except (ValueError, OSError) as error:
        command.exit(2, f'compile: {error}\n')
    print(f'compiled: {", ".join(names) or "nothing"}')


if __name__ == '__main__':
    main()
