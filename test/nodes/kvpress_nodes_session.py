"""Scorers of the package kvpress work in a suite.

`tools/with kvpress` runs these tests in a separate process.
"""

import pytest

from embodied_kv.nodes.action import Action
from embodied_kv.nodes.common.engine_host import EngineHost
from embodied_kv.nodes.language import Language
from embodied_kv.nodes.perception import Perception
from embodied_kv.srv import Ask, KvStats

SUITE = (Perception, Action, Language)
OF_KEYS = ('KnormPress', 'KeyDiffPress', 'LagKVPress(lag_size=16)', 'RandomPress')
OF_ATTENTION = ('ObservedAttentionPress', 'SnapKVPress(window_size=8)')


def parameters(name, by):
    names = dict(
        compression_method=f'kvpress:{name}', compression_queries=by, compression_after_tokens=0
    )
    names |= dict(language_keep_ratio=0.3, compressed_rows=4)
    return {f'engine.{name}': value for name, value in names.items()}


@pytest.mark.parametrize(
    'name, by', [(name, 'text') for name in OF_KEYS] + [(name, 'row') for name in OF_ATTENTION]
)
def test_a_robot_answers_from_what_a_scorer_keeps(robot, name, by):
    robot.up(*SUITE, prompt_interval_frames=0, **parameters(name, by))
    robot.until(lambda: robot.handles)
    engine = EngineHost._shared.engine
    kv = engine.kv
    engine.decode_fits = lambda now: any(not s.lease.is_copy for s in kv.streams.live())
    stream = robot.call(Ask, 'language/ask', question='what is red?', max_tokens=8).stream
    robot.until(lambda: kv.streams.get(stream).lease.is_copy, show=False)
    assert robot.call(KvStats, 'kv/stats').compressed == 1
    del engine.decode_fits
    robot.until(lambda: any(text.finished for text in robot.texts))
    assert [t.reason for t in robot.texts if t.stream == stream][-1] in ('eos', 'length')
    kv.check_integrity()


@pytest.mark.parametrize('name', OF_ATTENTION)
def test_a_scorer_of_attention_by_question_is_refused_when_configured(robot, name):
    node = robot.bring(Perception, **parameters(name, 'text'))
    assert node.trigger_configure().name != 'SUCCESS'
