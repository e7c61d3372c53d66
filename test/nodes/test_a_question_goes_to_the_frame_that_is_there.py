"""If a frame is evicted between a question and its stream, the question uses the next frame."""

from functools import partial
from types import SimpleNamespace

import pytest

from embodied_kv.kv.handle import StaleHandleError
from embodied_kv.nodes.language import Language
from embodied_kv.robots.contract import Language as Contract
from embodied_kv.srv import Ask


class Engine:
    """An engine that has only one frame."""

    def __init__(self, there: str) -> None:
        self.there, self.tried = there, []

    def open(self, handle: str, text: str, **how: object) -> SimpleNamespace:
        self.tried.append(handle)
        if handle != self.there:
            raise StaleHandleError(f'{handle} is gone')
        return SimpleNamespace(id=7)


class Asked(Language):
    """The language node without ROS. newest: the newest frame at each request."""

    def __init__(self, engine: Engine, *newest: str) -> None:
        self.host = SimpleNamespace(engine=engine, device=SimpleNamespace(wake=lambda: None))
        contract = SimpleNamespace(language=Contract(questions=True))
        self.embodiment = SimpleNamespace(contract=contract)
        self.params = SimpleNamespace(read=lambda kind: kind())
        self._newest, self._streams = partial(next, iter(newest)), {}


def ask(engine: Engine, *newest: str) -> Ask.Response:
    node, response = Asked(engine, *newest), Ask.Response()
    node._ask(Ask.Request(question='what is red?'), response)
    assert list(node._streams) == [response.stream]
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
