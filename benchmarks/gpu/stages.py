"""The stages of the programme, the most valuable first.

The stages up to `LAST_OF_FIRST` take less than ten minutes together, whatever happens in them.

Knows commands, their limits and the line of their figures. Does not know how they are run, nor
torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.gpu import targets

CUDA, CPU = ('--device', 'cuda'), ('--device', 'cpu')
GPU = 'benchmarks.gpu'
BENCH = 'benchmarks'


@dataclass(frozen=True)
class Stage:
    """One command, in a process of its own.

    asks: the question that it answers. module, words: `python -m module words` on a card; dry: the
    words for `--dry`, with tiny dimensions on a CPU, of dry_module if there is one. minutes: that
    it may take. say: returns the line of its figures. judge: takes the figures of a card, and
    returns the target that they miss, or ''. option: of the programme, without which it is
    skipped; its value follows the words.
    """

    name: str
    asks: str
    module: str
    words: Sequence[str]
    dry: Sequence[str]
    minutes: float
    say: Callable[[dict], str]
    dry_module: str = ''
    option: str = ''
    judge: Callable[[dict], str] | None = None

    def command(self, dry: bool, value: str = '') -> list[str]:
        """Return the arguments of the interpreter. value: of `option`."""
        module = self.dry_module or self.module if dry else self.module
        own = [f'--{self.option}', value] if self.option else []
        return ['-m', module, *(self.dry if dry else self.words), *own, '--json']


def _checks(found: dict) -> str:
    rows = found['rows']
    bad = [row for row in rows if not row['ok']]
    first = f', first: {_short(bad[0])}' if bad else ''
    return f'{len(rows) - len(bad)} of {len(rows)} agree{first}'


def _short(row: dict) -> str:
    """Return the subject of a row, and what went wrong."""
    return ', '.join(str(value) for value in row.values() if isinstance(value, str) and value)


def _facts(found: dict) -> str:
    best = found['ceilings']
    rate, moved = best['gflops'] / 1e3, best['gbytes']
    return f'{rate:.4g} TFLOP/s in bfloat16, {moved:.4g} GB/s'


def _frames(found: dict) -> str:
    frames = [row for row in found['rows'] if row['phase'] == 'frame']
    said = [
        f'{row["views"]} views {row["way"]} {row["ms"]:.4g} ms ({row["of_floor"]:.0%})'
        for row in frames
    ]
    return 'frame, and of its floor: ' + ', '.join(said)


def _deadline(found: dict) -> str:
    row = found['rows'][0]
    return (
        f'{row["misses"]} of {row["deadlines"]} missed, p99 {row["p99_ms"]:.4g} ms, '
        f'{row["mean_euler"]:.3g} Euler steps, {row["tokens_s"]:.0f} tokens/s'
    )


def _ways(found: dict) -> str:
    row = found['rows'][-1]
    return ', '.join(f'{k[:-3]} {v:.4g} ms' for k, v in row.items() if k.endswith('_ms'))


def _capsule(found: dict) -> str:
    said = f'first action {found["action"]["speedup"]:.3g} times sooner'
    if not found['prefixes']:
        return f'{said}; without the hybrid planner: {found["no_hybrid"]}'
    last = found['prefixes'][-1]
    return f'{said}, first token {last["speedup"]:.3g} times at {last["length"]} tokens'


def _compression(found: dict) -> str:
    best = max(found['decode'], key=lambda row: row['speedup'])
    return (
        f'a step up to {best["speedup"]:.3g} times faster ({best["model"]}, {best["context"]} '
        f'tokens, {best["batch"]} streams)'
    )


def _loading(found: dict) -> str:
    best: dict[str, dict] = {}
    for row in found['rows']:
        best[row['method']] = min(row, best.get(row['method'], row), key=lambda r: r['ms'])
    said = [f'{name} {row["ms"]:.4g} ms ({row["policy"]})' for name, row in best.items()]
    return 'first token at best: ' + ', '.join(said)


def _threads(found: dict) -> str:
    return f'{_checks(found)}; a token of the planner {found["token_ms"]:.3g} ms'


def _top(found: dict) -> str:
    return ', '.join(f'{row["phase"]}: {row["launches"]} launches' for row in found['phases'])


def _peers(found: dict) -> str:
    return ', '.join(f'{k} {v}' for k, v in found.items() if not isinstance(v, (list, dict)))[:200]


TINY = ('--preset', 'tiny', *CPU)
PI05 = ('--preset', 'pi05', *CUDA)
SERVED = ('--views', '2', '--runs', 'budget on')
AT_50_HZ = (*PI05, '--period', '0.02', *SERVED)
PEERS = ('ours_eager', 'theirs_eager', 'theirs_compiled')
FRAME = ('--modes', 'isolated', 'shared', 'batched', 'copying', 'parallel')

STAGES = (
    Stage(
        'facts', 'Which card is it, and what can it do at best?',
        f'{GPU}.facts', CUDA, (*CPU, '--dry'), 0.75, _facts,
    ),
    Stage(
        'kernels', 'Do the Triton kernels make what their torch twins make, at heads of pi05?',
        f'{GPU}.kernels', (*CUDA, '--heads', '256'), (*CPU, '--dry', '--heads', '16'), 1.5,
        _checks,
    ),
    Stage(
        'replay', "Is a replayed graph the computation that was captured, and the CPU's?",
        f'{GPU}.replay', CUDA, (*CPU, '--dry'), 1, _checks,
    ),
    Stage(
        'agree', 'Are the numbers those of openpi and LeRobot?',
        f'{GPU}.agree', CUDA, (*CPU, '--dry'), 0.75, _checks,
    ),
    Stage(
        'pi05', 'How long does a frame of pi05 with two views take, captured, beside the floor?',
        f'{GPU}.real', (*PI05, '--views', '2'), (*TINY, '--views', '2', '--dry'), 1.25, _frames,
        judge=targets.frames,
    ),
    Stage(
        'compiles', 'Can something small be compiled ahead of time, and captured?',
        f'{GPU}.compiles', CUDA, CPU, 0.5, _checks,
    ),
    Stage(
        'pi05_compiled', 'And with the computations of a frame compiled, then captured?',
        f'{GPU}.real', (*PI05, '--views', '2', '--compile', '--frame-only'),
        (*TINY, '--views', '2', '--compile', '--frame-only', '--dry'), 2.25, _frames,
        judge=targets.frames,
    ),
    Stage(
        'deadline', 'Do chunks come in time at 50 Hz, beside language that never ends?',
        f'{BENCH}.deadline', (*AT_50_HZ, '--deadlines', '1500'),
        (*TINY, '--deadlines', '10', *SERVED), 1.5, _deadline,
        judge=targets.in_time,
    ),
    Stage(
        'threads', 'Do planner, snapshots and actions on three threads make the bytes of one?',
        f'{GPU}.threads', CUDA, (*CPU, '--dry'), 1.5, _threads,
    ),
    Stage(
        'top', 'Where does the time go, kernel by kernel?',
        f'{GPU}.top', (*PI05, '--views', '2'), (*TINY, '--views', '2'), 1, _top,
    ),
    Stage(
        'kernels_other', 'Do the kernels make what their twins make, at other heads?',
        f'{GPU}.kernels', (*CUDA, '--heads', '48', '80'), (*CPU, '--dry', '--heads', '24'), 4,
        _checks,
    ),
    Stage(
        'views', 'How long does a frame take with one and three views?',
        f'{GPU}.real', (*PI05, '--views', '1', '3'), (*TINY, '--views', '1', '--dry'), 4, _frames,
    ),
    Stage(
        'capsule', 'What does a restored state save, and is it the same to the byte?',
        f'{BENCH}.capsule', (*PI05, '--quick'), ('capsule',), 4, _capsule, f'{GPU}.dry',
    ),
    Stage(
        'loading', 'Do loads of stored KV run beside the computation?',
        f'{GPU}.loading', CUDA, (*CPU, '--dry'), 3, _loading,
    ),
    Stage(
        'frame', 'What does sharing one cache save?',
        f'{BENCH}.frame', (*PI05, '--tokens', '30', '--steps', '5', '--frames', '10', *FRAME),
        (*TINY, '--tokens', '6', '--steps', '5', '--frames', '1', *FRAME), 5, _ways,
        judge=targets.equal_actions,
    ),
    Stage(
        'compression', 'What does a tenth of the cache cost and save?',
        f'{BENCH}.compress.speed', (*CUDA, '--quick'), ('compress.speed',), 5, _compression,
        f'{GPU}.dry',
    ),
    Stage(
        'all_compiled', 'How fast is all that `engine.compile` compiles?',
        f'{GPU}.real', (*PI05, '--views', '2', '--compile'),
        (*TINY, '--views', '2', '--compile', '--dry'), 9, _frames,
        judge=targets.frames,
    ),
    Stage(
        'deadline_compiled', 'Do 6,000 chunks come in time at 50 Hz, compiled?',
        f'{BENCH}.deadline', (*AT_50_HZ, '--deadlines', '6000', '--compile', 'now'),
        (*TINY, '--deadlines', '10', *SERVED), 6, _deadline,
        judge=targets.in_time_compiled,
    ),
    Stage(
        'peers', "How does LeRobot's own pi0.5 do, with the same weights?",
        f'{BENCH}.peers', (*PI05, '--dtype', 'bfloat16', '--ways', *PEERS), CPU, 8, _peers,
        option='lerobot',
    ),
)  # fmt: skip
NAMES = tuple(stage.name for stage in STAGES)
LAST_OF_FIRST = 'deadline'
