"""What is compiled is compiled at configure: nothing while an arm may move, whatever it does."""

from std_srvs.srv import SetBool

from embodied_kv.nodes.action import Action
from embodied_kv.nodes.language import Language
from embodied_kv.nodes.perception import Perception
from embodied_kv.runtime.compiled import Compiler
from embodied_kv.srv import Ask


def test_what_it_compiles_it_asked_for_before_it_was_armed(robot, monkeypatch):
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
