"""A frame may go between a question and its stream: then the frame after it is looked at."""

from types import SimpleNamespace

import pytest

from embodied_kv.kv.handle import StaleHandleError
from embodied_kv.nodes.language import LanguageParams, Voice
from embodied_kv.robots.contract import Language
from embodied_kv.srv import Ask


class Engine:
    """Knows one frame alone."""

    def __init__(self, there: str) -> None:
        self.there, self.tried = there, []

    def open(self, handle: str, text: str, **how: object) -> SimpleNamespace:
        self.tried.append(handle)
        if handle != self.there:
            raise StaleHandleError(f'{handle} is gone')
        return SimpleNamespace(id=7)


def ask(engine: Engine, *newest: str) -> Ask.Response:
    """newest: what is said to be the newest frame, each time it is asked for."""
    host = SimpleNamespace(engine=engine, device=SimpleNamespace(wake=lambda: None))
    contract = Language(questions=True)
    voice = Voice(host, contract, LanguageParams, lambda _: None)
    frames, response = iter(newest), Ask.Response()
    voice.ask(Ask.Request(question='what is red?'), response, lambda: next(frames))
    assert list(voice.streams) == [response.stream]
    return response


def test_a_newer_frame_answers_for_the_one_whose_row_it_took():
    engine = Engine('third')
    assert ask(engine, 'first', 'second', 'third').stream == 7
    assert engine.tried == ['first', 'second', 'third']


def test_where_no_newer_frame_came_it_is_said():
    engine = Engine('none')
    with pytest.raises(StaleHandleError, match='first is gone'):
        ask(engine, 'first', 'first')
    assert engine.tried == ['first']
