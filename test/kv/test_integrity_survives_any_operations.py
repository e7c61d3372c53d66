"""After any operations free + held = rows, and at the end every lease is returned."""

import numpy as np
import torch
from kv_cases import make_manager

from embodied_kv.kv.decode_stream import Query
from embodied_kv.kv.handle import StaleHandleError
from embodied_kv.kv.manager import LANGUAGE
from embodied_kv.kv.rows import OutOfRowsError

EOS = 1


class RandomOperations:
    """Random operations on a manager, as nodes and the engine thread call them."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.kv = make_manager(7, 5, layers=2)
        self.now, self.frame, self.reduced = 0.0, 0, 0
        self.handles, self.leases, self.writing = [], [], []

    def act(self):
        name = self.random.choice(
            [
                'reserve',
                'reserve',
                'commit',
                'commit',
                'abandon',
                'compress',
                'reduce',
                'acquire',
                'give_back',
                'create',
                'create',
                'step',
                'step',
                'cancel',
                'limits',
                'wait',
            ]
        )
        getattr(self, name)()

    def pick(self, items):
        return items[self.random.integers(len(items))] if items else None

    def reserve(self):
        if len(self.writing) < 2:
            try:
                self.writing.append(self.kv.reserve(self.now))
            except OutOfRowsError:
                assert len(self.leases) + len(self.writing) >= 3

    def commit(self):
        if self.writing:
            self.frame += 1
            self.handles.append(
                self.kv.frames.commit(
                    self.writing.pop(),
                    int(self.random.integers(1, 17)),
                    robot=self.pick(['', 'b']),
                    sequence=self.frame,
                    stamp=0,
                    deadline=self.now + 0.1,
                )
            )

    def abandon(self):
        if self.writing:
            self.kv.frames.abandon(self.writing.pop())

    def acquire(self):
        if self.handles and len(self.leases) < 3:
            try:
                self.leases.append(self.kv.acquire(self.pick(self.handles[-6:])))
            except StaleHandleError:
                pass

    def compress(self):
        if handle := self.kv.frames.current(self.pick(['', 'b'])):
            try:
                with self.kv.frames.acquire(handle) as lease:
                    if copy := self.kv.copies.compress(lease, [torch.tensor([[0]])] * 2):
                        self.kv.keep_copy([LANGUAGE], copy)
            except StaleHandleError:
                pass  # it is reduced

    def reduce(self):
        if self.handles:
            self.kv.reduce(self.pick(self.handles[-3:]))
            self.reduced += len(self.kv.frames.reduced())

    def give_back(self):
        if self.leases:
            self.leases.pop(self.random.integers(len(self.leases))).release()

    def create(self):
        if self.handles:
            try:
                self.kv.create(self.pick(self.handles[-4:]), Query('?', [5, 6], max_tokens=8))
            except StaleHandleError:
                pass
            except ValueError:
                assert 0 in (self.kv.streams_max, self.kv.language_rows_max)

    def step(self):
        new = [s for s in self.kv.streams.live() if s.is_new]
        streams = new[:1] or self.kv.streams.live()
        live = self.kv.streams.grow(streams, 2 if new else 1)
        while self.random.random() < 0.3:  # other threads do not wait for the end of a step
            getattr(self, self.random.choice(['cancel', 'limits', 'acquire', 'give_back']))()
            self.kv.check_integrity()
        self.kv.streams.update(live, self.random.integers(EOS, 9, (len(live), 1)).tolist(), EOS)

    def cancel(self):
        if self.kv.streams.live():
            self.kv.streams.release(self.pick(self.kv.streams.live()), 'cancelled')

    def limits(self):
        self.kv.set_limits(
            rows=int(self.random.integers(0, 6)), streams=int(self.random.choice([0, 3, 5, 5]))
        )

    def wait(self):
        self.now += float(self.random.exponential(0.5))


def test_10000_random_operations_keep_integrity():
    random = RandomOperations(seed=3)
    for _ in range(10_000):
        random.act()
        random.kv.check_integrity()
    assert random.kv.stats().prefills > 500
    assert random.kv.stats().evictions > 100
    assert random.reduced > 100


def test_leases_return_to_zero():
    random = RandomOperations(seed=4)
    for _ in range(1_000):
        random.act()
    for lease in random.leases:
        lease.release()
    for row in random.writing:
        random.kv.frames.abandon(row)
    for stream in random.kv.streams.live():
        random.kv.streams.release(stream, 'cancelled')
    last = random.kv.reserve(now=random.now + 100)  # every frame is past its deadline by then
    random.kv.frames.abandon(last)
    stats = random.kv.stats()
    assert (stats.leases, stats.streams, stats.rows_free) == (0, 0, stats.rows)
    assert stats.bytes_used == 0


def test_every_stream_is_reported_ended_exactly_once():
    random = RandomOperations(seed=5)
    for _ in range(3_000):
        random.act()
    ended = [stream.id for stream in random.kv.streams.pop_ended()]
    living = [stream.id for stream in random.kv.streams.live()]
    assert sorted(ended + living) == list(range(1, len(ended) + len(living) + 1))
    assert random.kv.streams.pop_ended() == []
