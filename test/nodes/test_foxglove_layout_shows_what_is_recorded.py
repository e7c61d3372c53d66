"""Each panel is in the Foxglove layout once, and shows fields of a recording."""

import json
import re
from pathlib import Path

import pytest

from embodied_kv.msg import RecordingState
from embodied_kv.nodes.recorder import STATE
from embodied_kv.nodes.recording.topics import recorded
from embodied_kv.robots.reading import load

LAYOUT = json.loads((Path(__file__).parents[2] / 'config' / 'foxglove.json').read_text())
PANELS = LAYOUT['configById']
KINDS = dict(topic.kept_as for topic in recorded(load('tabletop'), 'jpeg', 90))
KINDS[STATE] = RecordingState


def placed(node):
    return [node] if isinstance(node, str) else placed(node['first']) + placed(node['second'])


def shown(panel):
    """Return the paths that a panel shows, such as /action_chunk.age."""
    one = [panel[key] for key in ('topicPath',) if key in panel]
    image = [panel['imageMode']['imageTopic']] if 'imageMode' in panel else []
    return one + image + [path['value'] for path in panel.get('paths', ())]


def test_each_panel_stands_in_the_layout_once():
    assert sorted(placed(LAYOUT['layout'])) == sorted(PANELS)


@pytest.mark.parametrize('name', PANELS)
def test_each_panel_shows_what_is_recorded(name):
    paths = shown(PANELS[name])
    assert paths
    for path in paths:
        topic, _, field = path.lstrip('/').partition('.')
        field = re.sub(r'\[.*', '', field)
        assert topic in KINDS, topic
        assert not field or field in KINDS[topic].get_fields_and_field_types(), path
