"""Neither the engine nor the background process compiles while an arm is armed."""

import pytest
from std_srvs.srv import SetBool, Trigger

from embodied_kv.nodes.action import Action
from embodied_kv.nodes.common.engine_host import EngineHost
from embodied_kv.nodes.language import Language
from embodied_kv.nodes.perception import Perception
from embodied_kv.runtime.compiled import Compiler
from embodied_kv.runtime.graph_cache import GraphCache
from embodied_kv.srv import Ask


class Compiling:
    """A stand-in for the process that compiles; `runs` is whether it compiles."""

    runs, ended = False, False

    def resume(self):
        self.runs = True

    def pause(self):
        self.runs = False

    def stop(self):
        self.runs, self.ended = False, True


@pytest.fixture
def compiling(monkeypatch):
    made = Compiling()
    monkeypatch.setattr(GraphCache, 'compile_later', lambda graphs, say, submit: made)
    return made


def test_compilation_is_requested_before_arming(robot, monkeypatch):
    asked = []
    monkeypatch.setattr(Compiler, 'compile', lambda self, name, *_: asked.append(name))
    robot.up(Perception, Action, Language, armed=False, engine__compile='auto')
    robot.more(robot.handles, 2)
    before = list(asked)
    assert {'prefill', 'denoise', 'extend'} <= {name.split()[0] for name in before}
    assert robot.call(SetBool, 'control/arm', data=True).success
    robot.until(lambda: robot.trajectories)
    assert robot.call(Ask, 'language/ask', question='what?').success
    robot.until(lambda: any(text.finished for text in robot.texts))
    assert asked == before


def test_the_background_compiles_until_an_arm_is_armed_and_after_it(robot, compiling):
    robot.up(Perception, Action, Language, armed=False)
    robot.more(robot.handles, 2)
    assert compiling.runs
    assert robot.call(SetBool, 'control/arm', data=True).success
    assert not compiling.runs
    assert robot.call(SetBool, 'control/takeover', data=True).success
    assert not compiling.runs, 'an operator may give the arm back at any moment'
    assert robot.call(Trigger, 'control/stop').success
    robot.until(lambda: compiling.runs)


def test_one_armed_robot_of_several_is_enough(robot, compiling):
    robot.up(Perception, Action, armed=False)
    host = EngineHost._shared
    host.hold_compiler('a', True)
    host.hold_compiler('b', True)
    host.hold_compiler('a', False)
    assert not compiling.runs
    host.hold_compiler('b', False)
    assert compiling.runs


def test_compilation_ends_with_the_process(robot, compiling):
    robot.up(Perception, Action, armed=False)
    EngineHost.close()
    assert compiling.ended
