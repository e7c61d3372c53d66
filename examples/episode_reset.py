"""Run reinforcement-learning rollouts from one start, where a reset is a rollback.

A capsule freezes the start once: the KV row of its frame, and a stream that talks about the frame.
A rollout ends on a signal of the critic, the clock or the Enter key. Then the scene is reset and
the session is restored from the capsule. Language continues without a prefill; an action always
needs a new frame.

Run it: `python examples/episode_reset.py`, with `--weights random` for a robot that twitches.
"""

from __future__ import annotations

import argparse
import math
import select
import sys
from concurrent.futures import Future

import numpy as np

from embodied_kv.capsule.registry import Registry
from embodied_kv.config import TABLETOP
from embodied_kv.demo.sim.rollout import Rollout
from embodied_kv.demo.sim.scene import CAMERAS
from embodied_kv.demo.sim.tabletop import Tabletop
from embodied_kv.demo.sim.tasks import Judge, draw_task, task_scene
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.fingerprint import fingerprint
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model.checkpoints.open import open_checkpoint
from embodied_kv.model.checkpoints.own import bundled
from embodied_kv.model.policy import Policy
from embodied_kv.session.engine_part import EnginePart
from embodied_kv.session.robot_session import RobotSession
from embodied_kv.types import ActionChunk, Observation

SCENE = 2_000_000  # seed
EXECUTION_HORIZON = 5  # actions that are executed of each chunk


def at_once(work) -> Future:
    """Run the work now and return its future: this loop is the engine's thread."""
    future: Future = Future()
    future.set_result(work())
    return future


def act(engine: Engine, table: Tabletop, instruction: str, sequence: int) -> ActionChunk:
    """Return a chunk for the current observation. sequence: of the frame; it seeds the noise."""
    images = table.render()
    frame = Observation(
        images=tuple(images[name] for name in CAMERAS),
        state=table.state(),
        instruction=instruction,
        stamp=round(table.time * 1e9),
        deadline=math.inf,
        sequence=sequence,
    )
    (handle,) = engine.prefill([frame])
    with engine.kv.acquire(handle) as lease:
        return engine.denoise([lease], [math.inf])[0]


def speak(engine: Engine) -> str:
    """Return the remaining text of the live streams."""
    text = ''
    while engine.kv.streams.live():
        text += ''.join(delta.text for delta in engine.decode())
    return text


def why_over(judge: Judge, rollout: Rollout, seconds: float) -> str:
    """Return what ends the rollout: critic, clock or Enter key; '' while it continues."""
    enter = sys.stdin.isatty() and select.select([sys.stdin], [], [], 0)[0]
    ends = {
        'done': judge.done,
        'wrong object': judge.wrong,
        'time is up': rollout.time > seconds,
        'Enter': enter and sys.stdin.readline(),
    }
    return next((name for name, is_so in ends.items() if is_so), '')


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--weights', choices=('bundled', 'random'), default='bundled')
    parser.add_argument('--rollouts', type=int, default=4)
    parser.add_argument('--seconds', type=float, default=8.0, help='simulated, of a rollout')
    args = parser.parse_args(argv)
    random = args.weights == 'random'
    policy = Policy.random(TABLETOP) if random else open_checkpoint(bundled('tabletop')).load()
    engine = Engine(policy, EngineConfig(time_budget=False))
    capsules = RobotSession(EnginePart(engine), Registry(fingerprint(engine)), at_once)

    with Tabletop(task_scene('pick'), SCENE) as table:
        task = draw_task(table.objects(), np.random.default_rng(SCENE), 'pick')
        instruction, rollout = task.phrase(0), Rollout(table)
        first = act(engine, table, instruction, sequence=0)
        engine.open(engine.kv.frames.current(), 'Subtask:')
        said = ''.join(delta.text for delta in engine.decode())
        capsule, _ = capsules.snapshot('start')
        print(f'{instruction}: its start is a capsule of {capsule.bytes / 1e3:.0f} kB')

        for number in range(args.rollouts):
            chunk, reset = first, ''
            if number:
                table.reset(SCENE)
                rollout.restart()
                resumed = capsules.rollback('start')
                chunk = act(engine, table, instruction, sequence=0)
                for again in (chunk, capsules.replay('start')):
                    assert again.values.tobytes() == first.values.tobytes(), 'not the same start'
                reset = f'rolled back in {resumed.seconds * 1e3:.1f} ms, same first chunk; '
            words = (said + speak(engine)).strip()
            judge, frames = Judge(task, table.truth()), 1
            while not (why := why_over(judge, rollout, args.seconds)):
                rollout.follow(chunk.values, rollout.time, chunk.dt)
                for _ in range(EXECUTION_HORIZON):
                    rollout.advance(chunk.dt)
                    judge.see(table.truth())
                # Other sequence numbers give other noise: from here on the rollouts differ.
                chunk = act(engine, table, instruction, sequence=1000 * number + frames)
                frames += 1
            print(f'rollout {number}: {reset}"{words}"; {why} at {rollout.time:.1f} s')


if __name__ == '__main__':
    main()
