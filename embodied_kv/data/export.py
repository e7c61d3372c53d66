"""`python -m embodied_kv.data.export BAG OUT`: convert a recording to a LeRobot data set.

With `--contract FILE`, BAG is a rosbag2 folder or an MCAP file of any recorder. Several recordings
of one robot become one data set. Skipped periods are counted by reason.

A recording is read three times: for its episodes, to check their images, and to write the images.
One row group of images is held in memory, however long an episode is.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from embodied_kv import storage
from embodied_kv.data import bag_options, pictures
from embodied_kv.data.bag_options import BagOptions
from embodied_kv.data.bag_reader import Bag
from embodied_kv.data.bag_signals import BagSignals, pieces
from embodied_kv.data.episodes import Cut, Episode, Episodes
from embodied_kv.data.lerobot_layout import VERSION
from embodied_kv.data.lerobot_v21 import WRITERS
from embodied_kv.data.lerobot_writer import Frames, LeRobotWriter
from embodied_kv.data.recording_reader import (
    MessageSource,
    RecordedMessage,
    Recording,
    RecordingError,
)
from embodied_kv.data.signals import recorded_images
from embodied_kv.progress import Progress
from embodied_kv.robots.contract import Contract
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.robots.reading import load

ROW_GROUP = 16 * 2**20  # bytes of images that are written at once


@dataclass(frozen=True)
class Exported:
    """The result of an export.

    skipped: number of periods that are in no episode, by reason. damage: unreadable parts of the
    recordings.
    """

    episodes: int
    frames: int
    skipped: Counter[str]
    damage: tuple[str, ...]


def export(recordings: Sequence[Path], out: Path, cut: Cut, version: str = VERSION) -> Exported:
    """Write the data set as a whole, or nothing. Raises RecordingError, ValueError, OSError.

    version: format of the data set, a key of `WRITERS`.
    """
    return _export([Recording(path) for path in recordings], out, cut, version)


def export_bags(
    bags: Sequence[Path],
    out: Path,
    cut: Cut,
    contract: Contract,
    options: BagOptions,
    version: str = VERSION,
) -> Exported:
    """Write the data set of bags of other recorders, as `export` does."""
    options.check_bags(bags)
    with ExitStack() as stack:
        opened = [stack.enter_context(closing(Bag(path, contract, options))) for path in bags]
        return _export(opened, out, cut, version)


def _export(opened: Sequence[MessageSource], out: Path, cut: Cut, version: str) -> Exported:
    first = opened[0]
    if odd := [r.path for r in opened if r.contract != first.contract]:
        raise RecordingError(
            f'{odd[0]} must have the contract of {first.path}; export each robot separately'
        )
    if out.exists() and any(out.iterdir()):
        raise ValueError(f'{out} must be empty; choose a new folder')
    with storage.new_folder(out) as folder:
        writer = WRITERS[version](folder, Embodiment.of(first.contract))
        skipped: Counter[str] = Counter()
        for recording in opened:
            skipped.update(_write(recording, writer, cut))
        if not writer.episodes:
            raise RecordingError(
                f'{first.path} has no episode of {cut.least:g} s; skipped: {_counted(skipped)}'
            )
        writer.finish()
    damage = tuple(recording.damage for recording in opened if recording.damage)
    return Exported(writer.episodes, writer.frames, skipped, damage)


def _write(recording: MessageSource, writer: LeRobotWriter, cut: Cut) -> Counter[str]:
    """Write all episodes of a recording; return the number of skipped periods by reason."""
    skipped: Counter[str] = Counter()
    found: list[Episode] = []
    for signals in pieces(recording):
        episodes = Episodes(signals, cut)
        if isinstance(signals, BagSignals):
            signals.check_marks(episodes.found, cut.least)
        skipped.update(episodes.skipped)
        found += episodes.found
    whole = _decodable(recording, found, skipped)
    images = _Images(recording, whole)
    with Progress(f'{recording.path}: frames written', sum(map(len, whole))) as progress:
        for episode in whole:
            writer.add_parts(_parts(episode, images, progress), len(episode))
    return skipped


def _decodable(
    recording: MessageSource, episodes: Sequence[Episode], skipped: Counter[str]
) -> list[Episode]:
    """Return the episodes whose images can all be decoded; add the others to `skipped`."""
    views, whole = recording.contract.views, []
    damaged: dict[str, list[int]] = {view: [] for view in views}
    most = len(views) * sum(map(len, episodes))
    with Progress(f'{recording.path}: images checked', most) as progress:
        for view, place, message in progress.track(_used(recording, episodes)):
            try:
                pictures.check(message.read(), views[view])
            except ValueError:
                damaged[view].append(place)
    for episode in episodes:
        bad = {view: np.isin(places, damaged[view]) for view, places in episode.places.items()}
        first = {view: int(rows.argmax()) for view, rows in bad.items() if rows.any()}
        if first:
            view = min(first, key=first.__getitem__)
            skipped[f'of an episode with a damaged image of {view}'] += len(episode)
        else:
            whole.append(episode)
    return whole


def _used(
    recording: MessageSource, episodes: Sequence[Episode]
) -> Iterator[tuple[str, int, RecordedMessage]]:
    """Yield view, place and message of each image of the episodes, in the order of the file."""
    if not episodes:
        return
    wanted = {
        view: np.unique(np.concatenate([episode.places[view] for episode in episodes]))
        for view in recording.contract.views
    }
    passed = dict.fromkeys(wanted, 0)
    for view, place, message in recorded_images(recording):
        if passed[view] < len(wanted[view]) and wanted[view][passed[view]] == place:
            passed[view] += 1
            yield view, place, message


class _Images:
    """The images of episodes, for moments in their order.

    An image is held from the time it is read until a later one of its view is requested.
    """

    def __init__(self, recording: MessageSource, episodes: Sequence[Episode]) -> None:
        self._views, self._coming = recording.contract.views, _used(recording, episodes)
        self._held: dict[str, dict[int, bytes]] = {view: {} for view in self._views}

    def get(self, view: str, place: int) -> bytes:
        """Return the bytes of an image file."""
        held = self._held[view]
        while place not in held:
            other, at, message = next(self._coming)
            self._held[other][at] = pictures.as_seen(message.read(), self._views[other])
        for past in [at for at in held if at < place]:
            del held[past]
        return held[place]


def _parts(episode: Episode, images: _Images, progress: Progress) -> Iterator[Frames]:
    """Yield consecutive parts of an episode, each with about `ROW_GROUP` bytes of images."""
    places, begin, size = episode.places, 0, 0
    part: dict[str, list[bytes]] = {view: [] for view in places}
    for i in range(len(episode)):
        for view, at in places.items():
            part[view].append(images.get(view, int(at[i])))
            size += len(part[view][-1])
        if size >= ROW_GROUP or i + 1 == len(episode):
            rows = slice(begin, i + 1)
            yield Frames(
                task=episode.task,
                state=episode.state[rows],
                action=episode.action[rows],
                interventions=episode.interventions[rows],
                images=part,
            )
            progress.advance(i + 1 - begin)
            begin, size, part = i + 1, 0, {view: [] for view in places}


def _counted(skipped: Counter[str]) -> str:
    return '; '.join(f'{count} {reason}' for reason, count in skipped.most_common()) or 'none'


def main() -> None:
    parser = argparse.ArgumentParser(prog='export', description=__doc__)
    parser.add_argument('bag', type=Path, nargs='+', help='recordings, or bags with --contract')
    parser.add_argument('out', type=Path, help='a new folder')
    for field in fields(Cut):
        name = '--' + field.name.replace('_', '-')
        parser.add_argument(name, type=float, default=field.default, help='s')
    parser.add_argument(
        '--format',
        choices=tuple(WRITERS),
        default=VERSION,
        help='version of the data set: v3.0 (default) for LeRobot 0.4 and later, v2.1 for openpi',
    )
    bag_options.add_arguments(parser)
    args = parser.parse_args()
    cut = Cut(**{field.name: getattr(args, field.name) for field in fields(Cut)})
    try:
        bags = bag_options.of_arguments(args)
        if args.contract is not None:
            robot = load(args.contract)
            done = export_bags(args.bag, args.out, cut, robot, bags, args.format)
        elif bags != BagOptions():
            raise ValueError('--contract must be given with options of bags (got none)')
        else:
            done = export(args.bag, args.out, cut, args.format)
    except (ValueError, OSError) as error:
        parser.exit(1, f'{error}\n')
    print(f'{args.out}: {done.episodes} episodes, {done.frames} frames')
    print(f'skipped: {_counted(done.skipped)}')
    for damage in done.damage:
        print(damage)


if __name__ == '__main__':
    main()
