"""The training loop: learn, validate and save until the lessons or the time are over."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from embodied_kv.progress import Progress
from training.common.journal import Journal

LOG_EVERY, KEEP_EVERY = 20, 100  # steps between two rows of the log, and between two validations
KEEP_SECONDS = 300.0  # between two saved states: limits the loss of an interrupted run

Lesson = TypeVar('Lesson')


class Trainer(Protocol, Generic[Lesson]):
    """Interface of what the loop trains. step: next step of the recipe."""

    step: int

    def learn(self, lesson: Lesson) -> dict[str, float]:
        """Take one step and return its losses."""

    def validate(self) -> dict[str, float]:
        """Return metrics on held-out data."""

    def keep(self, out: Path) -> None:
        """Save what is shipped, and what the next run needs, in the folder."""


def run(
    trainer: Trainer[Lesson], lessons: Iterable[Lesson], last: int, out: Path, minutes: float
) -> None:
    """Run the lessons up to step `last`, or as many as the minutes allow; at least one.

    The folder gets the files of the trainer, log.csv and curves.png.
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
