"""`python -m embodied_kv.data.export BAG OUT`: a recording becomes a LeRobot v3 data set.

Several recordings of one robot become one data set. What is left out is counted by reason.

A recording is read three times: for its episodes, to check the pictures that they show, and to
write these. A row group of pictures is all that is held at a time, however long an episode is.
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
from embodied_kv.data.episodes import Cut, Episode, Episodes
from embodied_kv.data.lerobot_writer import Frames, LeRobotWriter
from embodied_kv.data.recording_reader import RecordedMessage, Recording, RecordingError
from embodied_kv.data.signals import recorded_images, unbroken
from embodied_kv.progress import Progress
from embodied_kv.robots.embodiment import Embodiment

ROW_GROUP = 16 * 2**20  # bytes of pictures that are written at once


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
        folder.chmod(0o700)  # the images of the recordings, which are private too
        writer = LeRobotWriter(folder, Embodiment.of(first.contract))
        skipped: Counter[str] = Counter()
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
    found: list[Episode] = []
    for signals in unbroken(recording):
        episodes = Episodes(signals, cut)
        skipped.update(episodes.skipped)
        found += episodes.found
    whole = _decodable(recording, found, skipped)
    seen = _Pictures(recording, whole)
    with Progress(f'{recording.path}: frames written', sum(map(len, whole))) as progress:
        for episode in whole:
            writer.add_parts(_parts(episode, seen, progress), len(episode))
    return skipped


def _decodable(
    recording: Recording, episodes: Sequence[Episode], skipped: Counter[str]
) -> list[Episode]:
    """Return the episodes whose pictures can all be decoded.

    skipped: counts the periods of the others.
    """
    views, whole = recording.contract.views, []
    spoilt: dict[str, list[int]] = {view: [] for view in views}
    most = len(views) * sum(map(len, episodes))
    with Progress(f'{recording.path}: pictures checked', most) as progress:
        for view, place, message in progress.track(_shown(recording, episodes)):
            try:
                pictures.check(message.read(), views[view])
            except ValueError:
                spoilt[view].append(place)
    for episode in episodes:
        bad = {view: np.isin(places, spoilt[view]) for view, places in episode.places.items()}
        first = {view: int(rows.argmax()) for view, rows in bad.items() if rows.any()}
        if first:
            view = min(first, key=first.__getitem__)
            skipped[f'of an episode with a picture of {view} that cannot be decoded'] += len(
                episode
            )
        else:
            whole.append(episode)
    return whole


def _shown(
    recording: Recording, episodes: Sequence[Episode]
) -> Iterator[tuple[str, int, RecordedMessage]]:
    """Yield view, place and message of the pictures in episodes, once, in the file's order."""
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


class _Pictures:
    """The pictures of episodes, for moments in their order.

    A picture is held from when it is read until a later one of its view is asked for.
    """

    def __init__(self, recording: Recording, episodes: Sequence[Episode]) -> None:
        self._views, self._coming = recording.contract.views, _shown(recording, episodes)
        self._held: dict[str, dict[int, bytes]] = {view: {} for view in self._views}

    def get(self, view: str, place: int) -> bytes:
        """Return the image file of a picture."""
        held = self._held[view]
        while place not in held:
            other, at, message = next(self._coming)
            self._held[other][at] = pictures.as_seen(message.read(), self._views[other])
        for past in [at for at in held if at < place]:
            del held[past]
        return held[place]


def _parts(episode: Episode, seen: _Pictures, progress: Progress) -> Iterator[Frames]:
    """Yield consecutive parts of an episode, each with `ROW_GROUP` bytes of pictures, about."""
    places, begin, size = episode.places, 0, 0
    images: dict[str, list[bytes]] = {view: [] for view in places}
    for i in range(len(episode)):
        for view, at in places.items():
            images[view].append(seen.get(view, int(at[i])))
            size += len(images[view][-1])
        if size >= ROW_GROUP or i + 1 == len(episode):
            rows = slice(begin, i + 1)
            yield Frames(
                task=episode.task,
                state=episode.state[rows],
                action=episode.action[rows],
                interventions=episode.interventions[rows],
                images=images,
            )
            progress.advance(i + 1 - begin)
            begin, size, images = i + 1, 0, {view: [] for view in places}


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
