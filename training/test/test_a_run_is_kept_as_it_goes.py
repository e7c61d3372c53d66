"""A run saves its state after a number of steps, or after some time if steps are slow."""

import pytest

from training.common import loop


class Counter:
    """A trainer whose steps take so many seconds of its own clock."""

    def __init__(self, seconds):
        self.step, self.now, self.kept, self._seconds = 0, 0.0, [], seconds

    def learn(self, lesson):
        self.step, self.now = self.step + 1, self.now + self._seconds
        return {'loss': 0.0}

    def validate(self):
        return {'exact': 1.0}

    def keep(self, out):
        self.kept.append(self.step)


@pytest.mark.parametrize(
    ('seconds', 'kept'), [(0.1, [100, 200, 250]), (20.0, [16, 32, 48, 64, 80, 96, 100])]
)
def test_state_is_kept_by_steps_and_by_time(tmp_path, monkeypatch, seconds, kept):
    trainer = Counter(seconds)
    monkeypatch.setattr(loop.time, 'monotonic', lambda: trainer.now)
    last = kept[-1]
    loop.run(trainer, range(last), last, tmp_path, minutes=1e6)
    assert trainer.kept == kept
