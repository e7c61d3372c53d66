"""Questions answered in one batch from shared rows, or each alone, get the same answers."""

import math
from itertools import count

import numpy as np
import pytest
import torch
from whole_cases import POLICY, SETTINGS

from benchmarks.whole.voices import PROMPT, PROMPTS, Apart, Frame, Voices
from embodied_kv.config import TINY
from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig
from embodied_kv.serving.batch import KeptRows, serve
from embodied_kv.serving.stream_quota import StreamQuota
from embodied_kv.types import Observation

TEXTS = ['What is red?', 'Where is it?', 'How many?']
ROBOT = '/a'


def observation(sequence):
    random, size = np.random.default_rng(sequence), TINY.vision.image_size
    return Observation(
        images=tuple(random.integers(0, 256, (size, size, 3), np.uint8) for _ in TINY.views),
        state=np.zeros(7, np.float32),
        instruction='reach the red cube',
        stamp=sequence,
        deadline=-math.inf,
        sequence=sequence,
        robot=ROBOT,
    )


class Speaker:
    """A way of answering, with an engine that counts prefills and concurrently decoded streams."""

    def __init__(self, kind):
        torch.set_num_threads(1)
        config = EngineConfig(
            max_batch_robots=1, rows=24, streams=12, reserved_rows=2, time_budget=False
        )
        self.engine = Engine(POLICY, config)
        self.kept, shares = KeptRows(self.engine), StreamQuota(self.engine)
        shares.join(ROBOT)
        self.voices, self.live, self.answers = (
            kind(self.engine, shares, self.kept, SETTINGS),
            [],
            {},
        )

    @property
    def prefills(self):
        return self.engine.kv.stats().prefills

    def speak(self):
        with torch.inference_mode():
            while (unit := self.voices.unit(0.0)) is not None:
                unit()
                self.live.append(len(self.engine.kv.streams.live()))
                self.voices.hear()

    def ask(self, frame):
        for text in TEXTS:
            self.voices.ask(frame, text, lambda words, t=text: self.answers.update({t: words}), 6)
        self.speak()


@pytest.fixture(params=[Voices, Apart], ids=['shared', 'apart'])
def speaker(request):
    return Speaker(request.param)


def test_a_look_is_one_prefill_or_one_for_each_question():
    shared, apart = Speaker(Voices), Speaker(Apart)
    for one in (shared, apart):
        frame = one.voices.look(observation(1))
        one.ask(frame)
        frame.leave()
        one.engine.kv.check_integrity()
    assert (shared.prefills, apart.prefills) == (1, len(TEXTS))
    assert max(shared.live) == len(TEXTS) and max(apart.live) == 1
    assert shared.answers == apart.answers and set(shared.answers) == set(TEXTS)
    assert shared.voices.tokens == apart.voices.tokens > 0
    assert shared.voices.answers == apart.voices.answers == len(TEXTS)


def test_prompts_go_on_from_the_frame_that_was_served(speaker):
    frame = observation(2)
    with torch.inference_mode():
        serve(speaker.engine, [frame], math.inf, speaker.kept)
    before = speaker.prefills
    speaker.voices.prompt(frame)
    speaker.voices.prompt(frame)  # the previous ones are not answered yet
    assert sorted(speaker.voices.asked(ROBOT)) == sorted((text, PROMPT) for text in PROMPTS)
    speaker.speak()
    own = 0 if type(speaker.voices) is Voices else len(PROMPTS)
    assert speaker.prefills == before + own and speaker.voices.answers == len(PROMPTS)
    assert speaker.voices.asked(ROBOT) == []


def test_who_is_cut_off_is_answered_with_nothing(speaker):
    heard = []
    frame = speaker.voices.look(observation(3))
    speaker.voices.ask(frame, TEXTS[0], heard.append)
    with torch.inference_mode():
        unit = speaker.voices.unit(0.0)
        unit()
    for stream in speaker.engine.kv.streams.live():
        speaker.engine.kv.streams.release(stream, 'cancelled')
    speaker.voices.hear()
    assert heard == [''] and speaker.voices.tokens == 0


def test_without_a_row_there_is_no_answer():
    heard, shared = count(), Speaker(Voices)
    shared.voices.ask(Frame(observation(4)), TEXTS[0], lambda words: words or next(heard))
    assert next(heard) == 1 == shared.voices.refused and shared.voices.unit(0.0) is None
