"""`python -m embodied_kv.data.export BAG OUT`: a recording becomes a LeRobot v3 data set.

Several recordings of one robot become one data set. What is left out is counted by reason.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from embodied_kv import storage
from embodied_kv.data import pictures
from embodied_kv.data.episodes import Cut, Episodes, Moment
from embodied_kv.data.lerobot_writer import Frames, LeRobotWriter
from embodied_kv.data.recording_reader import RecordedMessage, Recording, RecordingError
from embodied_kv.data.signals import Signals, unbroken
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.robots.sources import View


@dataclass(frozen=True)
class Exported:
    """skipped: what is in no episode, by reason. damage: what of the recordings cannot be read."""

    episodes: int
    frames: int
    skipped: Counter[str]
    damage: tuple[str, ...]


def export(recordings: Sequence[Path], out: Path, cut: Cut) -> Exported:
    """Writes the data set, whole or not at all. Raises RecordingError, ValueError, OSError."""
    opened = [Recording(path) for path in recordings]
    first = opened[0]
    if odd := [r.path for r in opened if r.contract != first.contract]:
        raise RecordingError(
            f'{odd[0]} has another contract than {first.path}: export each robot by itself'
        )
    if out.exists() and any(out.iterdir()):
        raise ValueError(f'{out} is not empty: name a new folder')
    with storage.replaced_folder(out.absolute()) as folder:
        writer, skipped = LeRobotWriter(folder, Embodiment.of(first.contract)), Counter()
        for recording in opened:
            skipped.update(_write(recording, writer, cut))
        if not writer.episodes:
            raise RecordingError(
                f'{first.path} has no episode of {cut.least:g} s; left out: {_counted(skipped)}'
            )
        writer.finish()
    damage = tuple(recording.damage for recording in opened if recording.damage)
    return Exported(writer.episodes, writer.frames, skipped, damage)


def _write(recording: Recording, writer: LeRobotWriter, cut: Cut) -> Counter[str]:
    """All episodes of a recording. Returns what is in none, by reason."""
    skipped: Counter[str] = Counter()
    for signals in unbroken(recording):
        episodes = Episodes(signals, cut)
        skipped.update(episodes.skipped)
        for frames in _with_pictures(signals, episodes.found, skipped):
            writer.add(frames)
    return skipped


def _with_pictures(
    signals: Signals, episodes: Sequence[tuple[Moment, ...]], skipped: Counter[str]
) -> Iterator[Frames]:
    """One after the other; a picture is held until the last episode that shows it.

    skipped: counts the periods of episodes that show a picture that cannot be decoded.
    """
    views = signals.recording.contract.views
    last = {
        item: number
        for number, episode in enumerate(episodes)
        for moment in episode
        for item in moment.pictures.items()
    }
    held: dict[tuple[str, int], bytes | None] = {}  # None: it cannot be decoded
    coming = signals.pictures()
    for number, episode in enumerate(episodes):
        held = {item: data for item, data in held.items() if last[item] >= number}
        missing = {item for moment in episode for item in moment.pictures.items()} - held.keys()
        while missing:
            view, place, message = next(coming)
            if (view, place) in last:
                held[view, place] = _seen(message, views[view])
                missing.discard((view, place))
        shown = [(item, held[item]) for moment in episode for item in moment.pictures.items()]
        if spoilt := [view for (view, _), data in shown if data is None]:
            skipped[f'of an episode with a picture of {spoilt[0]} that cannot be decoded'] += len(
                episode
            )
            continue
        yield Frames(
            task=episode[0].task,
            state=np.stack([moment.state for moment in episode]),
            action=np.stack([moment.action for moment in episode]),
            interventions=np.array([moment.is_intervention for moment in episode]),
            images={
                view: [held[view, moment.pictures[view]] for moment in episode] for view in views
            },
        )


def _seen(message: RecordedMessage, view: View) -> bytes | None:
    try:
        return pictures.as_seen(message.read(), view)
    except ValueError:
        return None


def _counted(skipped: Counter[str]) -> str:
    return '; '.join(f'{count} {reason}' for reason, count in skipped.most_common()) or 'none'


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog='export', description=__doc__)
    parser.add_argument('bag', type=Path, nargs='+', help='recordings of the node recorder')
    parser.add_argument('out', type=Path, help='a new folder')
    for field in fields(Cut):
        name = '--' + field.name.replace('_', '-')
        parser.add_argument(name, type=float, default=field.default, help='s')
    told = parser.parse_args()
    cut = Cut(**{field.name: getattr(told, field.name) for field in fields(Cut)})
    try:
        done = export(told.bag, told.out, cut)
    except (ValueError, OSError) as error:
        parser.exit(1, f'{error}\n')
    print(f'{told.out}: {done.episodes} episodes, {done.frames} frames')
    print(f'left out: {_counted(done.skipped)}')
    for damage in done.damage:
        print(damage)


if __name__ == '__main__':
    main()
