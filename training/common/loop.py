"""A run of lessons: learnt, validated and kept as it goes, until they are over or time is."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from embodied_kv.progress import Progress
from training.common.journal import Journal

LOG_EVERY, KEEP_EVERY = 20, 100  # steps between two rows of the log, and between two validations
KEEP_SECONDS = 300.0  # that a run which is cut off loses at most, on a busy machine too

Lesson = TypeVar('Lesson')


class Trainer(Protocol, Generic[Lesson]):
    """step: the next one to do."""

    step: int

    def learn(self, lesson: Lesson) -> dict[str, float]:
        """One step -> losses."""

    def validate(self) -> dict[str, float]:
        """What has been learnt, on what is not learnt from."""

    def keep(self, out: Path) -> None:
        """Leaves in the folder what ships, and what the next run needs."""


def run(
    trainer: Trainer[Lesson], lessons: Iterable[Lesson], last: int, out: Path, minutes: float
) -> None:
    """The lessons up to step `last`, or as many as the minutes allow; one at least.

    The folder gets what the trainer keeps, log.csv and curves.png.
    """
    began = kept = time.monotonic()
    journal = Journal(out / 'log.csv', trainer.step)
    with Progress('steps', last, trainer.step, 60 * minutes) as progress:
        for lesson in progress.track(lessons):
            values = trainer.learn(lesson)
            if trainer.step % LOG_EVERY == 0:
                journal.write(trainer.step, 'seen', values)
            now = time.monotonic()
            over = now - began > 60 * minutes
            validated = trainer.step % KEEP_EVERY == 0 or trainer.step == last or over
            if validated:
                spent = dict(wall=time.monotonic() - began, processor=time.process_time())
                figures = {f'{name}_min': seconds / 60 for name, seconds in spent.items()}
                journal.write(trainer.step, 'unseen', trainer.validate() | figures)
                print(journal.last(), flush=True)
            if validated or now - kept > KEEP_SECONDS:
                trainer.keep(out)
                kept = now
            if over:
                break
    journal.plot(out / 'curves.png')
