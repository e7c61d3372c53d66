"""Options for reading bags of other recorders, and the list of their episodes."""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from embodied_kv.data.recording_reader import RecordingError

SECOND = 1_000_000_000  # ns
ACTIONS = ('auto', 'commands', 'chunks', 'measured')
STAMPS = ('header', 'receive')


class BagError(RecordingError):
    """Raised for a bag that cannot become a data set."""


@dataclass(frozen=True)
class Mark:
    """A listed episode: start and end (s) after the start of the bag, and task.

    bag: name of its folder or file; '' for the only bag. line: its place in the list, for errors.
    """

    start: float
    end: float
    task: str = ''
    bag: str = ''
    line: str = ''


@dataclass(frozen=True)
class BagOptions:
    """Options for reading bags of other recorders.

    namespace: of the robot's topics. task: instruction of all episodes; '' reads it from
    task_topic (std_msgs/String). episode_topic: topic whose field `data` marks episodes. marks:
    listed episodes; None for no list. actions: one of ACTIONS. gap: time (s) without a command
    that ends an episode. stamps: one of STAMPS.
    """

    namespace: str = '/'
    task: str = ''
    task_topic: str = ''
    episode_topic: str = ''
    marks: tuple[Mark, ...] | None = None
    actions: str = 'auto'
    gap: float = 2.0
    stamps: str = 'header'

    def __post_init__(self) -> None:
        if not 0 < self.gap < math.inf:
            raise ValueError(f'gap must be > 0 s (got {self.gap:g})')
        if self.marks is not None and self.episode_topic:
            raise ValueError(
                '--episode-topic must be absent where episodes are listed (got both); use one'
            )

    @property
    def prefix(self) -> str:
        """Return the namespace with a slash before it and none after it."""
        name = self.namespace.strip('/')
        return f'/{name}' if name else ''

    def marks_of(self, path: Path) -> tuple[Mark, ...] | None:
        """Return the listed episodes of a bag, in order; None without a list."""
        if self.marks is None:
            return None
        own = [mark for mark in self.marks if mark.bag in ('', path.name)]
        return tuple(sorted(own, key=lambda mark: mark.start))

    def check_bags(self, paths: Sequence[Path]) -> None:
        """Check that listed episodes belong to the bags. Raises BagError."""
        names = [path.name for path in paths]
        for mark in self.marks or ():
            if mark.bag and mark.bag not in names:
                raise BagError(
                    f'{mark.line}: bag must be one of {", ".join(names)} (got {mark.bag})'
                )
            if len(names) > 1 and (not mark.bag or names.count(mark.bag) > 1):
                raise BagError(
                    f'{mark.line}: bag must name one of the {len(names)} bags (got '
                    f"'{mark.bag}'); write the column bag, with different names of the bags"
                )


def read_marks(path: Path) -> tuple[Mark, ...]:
    """Return the episodes of a CSV file with the columns start, end, task and bag.

    Raises BagError for a file of another form, OSError.
    """
    try:
        with path.open(newline='', encoding='utf-8-sig') as stream:
            rows = csv.DictReader(stream, skipinitialspace=True)
            known, given = {'start', 'end', 'task', 'bag'}, set(rows.fieldnames or ())
            if not {'start', 'end'} <= given <= known:
                raise BagError(
                    f'{path} must begin with the names of its columns, start,end and optionally '
                    f'task,bag (got {", ".join(map(str, sorted(given))) or "nothing"})'
                )
            marks = [_mark(row, f'{path}, line {rows.line_num}') for row in rows]
    except (UnicodeDecodeError, csv.Error) as error:
        raise BagError(f'{path} must be a CSV file (got {error})') from error
    return checked_marks(marks, str(path))


def mark_of_text(text: str) -> Mark:
    """Return the episode START:END or START:END:TASK. Raises BagError."""
    start, _, rest = text.partition(':')
    end, _, task = rest.partition(':')
    return _mark({'start': start, 'end': end, 'task': task}, f"episode '{text}'")


def _mark(row: dict, where: str) -> Mark:
    try:
        start, end = float(row['start']), float(row['end'])
    except (TypeError, ValueError) as error:
        raise BagError(
            f'{where}: start and end must be numbers of seconds (got {row["start"]!r} and '
            f'{row["end"]!r})'
        ) from error
    if not 0 <= start < end < math.inf:
        raise BagError(f'{where}: start must be >= 0 and < end (got {start:g} and {end:g} s)')
    return Mark(start, end, (row.get('task') or '').strip(), (row.get('bag') or '').strip(), where)


def checked_marks(marks: Sequence[Mark], where: str) -> tuple[Mark, ...]:
    """Return the marks; check that those of one bag do not overlap. Raises BagError."""
    if not marks:
        raise BagError(f'{where} must list an episode (got none)')
    ordered = sorted(marks, key=lambda mark: (mark.bag, mark.start))
    for one, other in pairwise(ordered):
        if one.bag == other.bag and other.start < one.end:
            raise BagError(
                f'{other.line}: start must be >= {one.end:g} s, the end of the episode before it '
                f'(got {other.start:g} s)'
            )
    return tuple(marks)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group('bags of other recorders')
    group.add_argument('--contract', help='contract of the robot: a file, or a shipped name')
    group.add_argument('--namespace', default='/', help="of the robot's topics")
    group.add_argument('--task', default='', help='instruction of all episodes')
    group.add_argument('--task-topic', default='', help='topic of std_msgs/String with the task')
    group.add_argument(
        '--episode-topic',
        default='',
        help='topic whose data starts an episode when it changes; false, negative or empty: none',
    )
    group.add_argument('--episodes', type=Path, help='CSV file: start,end[,task][,bag] in seconds')
    group.add_argument(
        '--episode',
        action='append',
        default=[],
        metavar='START:END[:TASK]',
        help='an episode of the only bag, seconds from its beginning on; may be repeated',
    )
    group.add_argument(
        '--actions',
        choices=ACTIONS,
        default='auto',
        help="commands: the controllers' topics; chunks: action_chunk of this suite; measured: "
        'joint positions one period later; auto: chunks if there are any, else commands',
    )
    group.add_argument(
        '--gap', type=float, default=2.0, help='s without a command that end an episode'
    )
    group.add_argument(
        '--stamps',
        choices=STAMPS,
        default='header',
        help='times of messages: their stamps, or the times of their recording',
    )


def of_arguments(args: argparse.Namespace) -> BagOptions:
    """Return the options of a command. Raises ValueError, OSError."""
    if args.episodes and args.episode:
        raise ValueError('--episodes must be absent where --episode is given (got both); use one')
    marks = None
    if args.episodes:
        marks = read_marks(args.episodes)
    elif args.episode:
        marks = checked_marks([mark_of_text(text) for text in args.episode], 'episode')
    names = ('namespace', 'task', 'task_topic', 'episode_topic', 'actions', 'gap', 'stamps')
    return BagOptions(marks=marks, **{name: getattr(args, name) for name in names})
