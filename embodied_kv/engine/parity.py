"""Compare an engine with recorded actions: `python -m embodied_kv.engine.parity FOLDER...`.

Each raw observation of a recorded case is prefilled into a row of the arena, a chunk is denoised
from the row as in the nodes, and the actions of the robot are compared with the recorded ones.
With `--compile`, compiled graphs then do the same; the first such run compiles for minutes.
`model.parity` compares each quantity of the network. Observations are skipped where the engine
bounds the state of a joint that stood still in the data, because the references do not.

Exit status: 0 if all are within tolerance, 1 if one is not, 2 if a folder cannot be compared.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model.parity.cases import Case, Quantity, exit_status, report
from embodied_kv.model.parity.replay import CHUNK, JAX_NORMS, ROUNDING
from embodied_kv.model.policy import Policy
from embodied_kv.types import Observation


def denoised(engine: Engine, seen: Observation, noise: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the actions of one observation by all Euler steps, [chunk, action_dim].

    noise: float32 [1, chunk, padded].
    """
    (handle,) = engine.prefill([seen])
    with engine.kv.acquire(handle) as lease:
        (chunk,) = engine.denoise([lease], [math.inf], noise)
    if isinstance(chunk, FloatingPointError):
        raise chunk
    return chunk.values


def actions(engine: Engine, case: Case, record: str) -> NDArray[np.float32]:
    """Return the actions of a recorded observation, [chunk, action_dim]."""
    seen = Observation(
        images=case.images(record),
        state=case.state(record),
        instruction=case.instruction(record),
        stamp=0,
        deadline=math.inf,
        sequence=1,
    )
    return denoised(engine, seen, case.noise().numpy())


def quantity(engine: Engine, case: Case, record: str) -> Quantity:
    """Return the actions with a tolerance for each number of an action, in units of the robot."""
    policy, values = engine.policy, actions(engine, case, record)
    unit = policy.processing.normalizer.action_scale.unit
    rounding = ROUNDING * (1 + np.abs(values).max(0))
    close = torch.from_numpy(tolerance(case, policy) * unit + rounding)
    return Quantity(torch.from_numpy(values).reshape(recorded(case, record).shape), close)


def recorded(case: Case, record: str) -> torch.Tensor:
    """Return the recorded actions, with or without a batch dimension."""
    return case.read(record, 'actions')


def tolerance(case: Case, policy: Policy) -> float:
    """Return the tolerance of a normalised chunk in float32."""
    is_jax = case.encoded_times() is not None
    return JAX_NORMS if is_jax and policy.model.expert.is_adaptive else CHUNK


def is_bounded(case: Case, policy: Policy, record: str) -> bool:
    """Return whether the state token differs from the reference's (`Scaling.bounded`)."""
    processing = policy.processing
    scale = processing.normalizer.state_scale
    state = scale.exact(processing.conversion.state(case.state(record)))
    return policy.config.state_width > 0 and not np.array_equal(state, scale.bounded(state))


def config(device: str, compile: str) -> EngineConfig:
    """Return the configuration of an engine that serves one frame."""
    small = partial(EngineConfig, rows=4, streams=1, decode_tokens=16, compressed_rows=0)
    return small(device=device, time_budget=False, compile=compile)


def compare(path: str, device: str = 'cpu', ways: Sequence[str] = ('off',)) -> bool:
    """Print a line for each observation and way, and return whether all are ok.

    ways: values of `engine.compile`. Raises CheckpointError.
    """
    case, known = Case(path), {}
    say = partial(print, file=sys.stderr, flush=True)
    for way in ways:
        policy = case.checkpoint.load(device, dtype='float32')
        engine = Engine(policy, config(device, way), say=say)
        name = 'eager' if way == 'off' else f'{len(engine.graphs.compiled_names)} graphs compiled'
        for record in case.records:
            if is_bounded(case, policy, record):
                print(f'{record}: not compared; its state of a joint that stood still is bounded')
                continue
            known[f'{record}.actions, {name}'] = quantity(engine, case, record)
    return report(path, list(known), lambda name: recorded(case, name.split('.')[0]), known)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog='python -m embodied_kv.engine.parity',
        description='Compare an engine with the recorded actions of a public reference.',
    )
    parser.add_argument('folders', nargs='+', metavar='FOLDER', help='folder of a case')
    parser.add_argument('--device', default='cpu', help='device that computes: cpu or cuda')
    parser.add_argument('--compile', action='store_true', help='compare compiled graphs too')
    args = parser.parse_args(arguments)
    ways = ('off', 'now') if args.compile else ('off',)
    return exit_status(args.folders, lambda path: compare(path, args.device, ways))


if __name__ == '__main__':
    sys.exit(main())
