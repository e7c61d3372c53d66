"""Print docs/parameters.md from the dataclasses that declare the parameters of the nodes."""

from __future__ import annotations

from dataclasses import fields

from embodied_kv.engine_config import EngineConfig
from embodied_kv.nodes.action import ActionParams
from embodied_kv.nodes.common.parameters import SuiteParams
from embodied_kv.nodes.language import LanguageParams
from embodied_kv.nodes.memory import BranchParams, MemoryParams
from embodied_kv.nodes.mission import MissionParams
from embodied_kv.nodes.observation.inputs import ObservationParams
from embodied_kv.nodes.recorder import RecorderParams
from embodied_kv.nodes.remote.server_link import RemoteParams
from embodied_kv.nodes.session import SessionParams
from embodied_kv.nodes.watchdog import WatchdogParams
from embodied_kv.planning.config import PlanningConfig
from embodied_kv.serving.memories import MemoryConfig
from embodied_kv.serving.ray_engine import CloudConfig
from embodied_kv.serving.scheduling import SchedulingConfig
from embodied_kv.serving.websocket.config import ServedEngineConfig, ServerConfig

HEAD = """# Parameters

This page lists every parameter of every node: its default, when it may change, and what it does.
Defaults are those of `config/robot.yaml`; `config/fleet.yaml` says what a fleet has otherwise.
*When* is the latest moment at which a value may change: at the start of the process, until the
node is configured, or live (`ros2 param set`). This page is made by
`tools/env python tools/parameters.py > docs/parameters.md`; a test compares both.
"""
PARTS = (
    ('All nodes', '', SuiteParams),
    (
        'Nodes on an engine (all but those of `remote_robot`): the engine of the process',
        'engine.',
        EngineConfig,
    ),
    ('`perception`', '', ObservationParams),
    ('`action`', '', ActionParams),
    ('`command_watchdog`', '', WatchdogParams),
    ('`language`', '', LanguageParams),
    ('`session`', '', SessionParams),
    ('`memory`', '', MemoryParams),
    ('`memory`: planning', '', PlanningConfig),
    ('`memory`: branches of plans', '', BranchParams),
    ('`mission`', '', MissionParams),
    ('`recorder`', '', RecorderParams),
    (
        '`action`, `language` and `memory` of a robot without a model (executable `remote_robot`)',
        'server.',
        RemoteParams,
    ),
    ('`policy_server`', '', ServerConfig),
    ('`policy_server`: the order of its clients', '', SchedulingConfig),
    ('`policy_server`: one more engine in a Ray cluster', '', CloudConfig),
    ('`policy_server`: memories of robots, in addition to `memory`', 'memory.', MemoryConfig),
    (
        '`policy_server`: the engine of the process, where it differs from that of others',
        'engine.',
        ServedEngineConfig,
    ),
)


def shown(value: object) -> str:
    """Return a default in the notation of YAML, short enough for a table."""
    if isinstance(value, tuple):
        return '[' + ', '.join(map(shown, value)) + ']'
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, str) else str(value)


def page() -> str:
    """Return the whole page."""
    lines = [HEAD]
    for title, prefix, part in PARTS:
        lines += [f'## {title}', '', '| name | default | when | what |', '|---|---|---|---|']
        for f in (f for f in fields(part) if f.name in part.__annotations__):
            what = f.metadata['help']
            if 'range' in f.metadata:
                what += '; {} to {}'.format(*f.metadata['range'])
            when = f.metadata.get('when', 'start')
            lines.append(f'| `{prefix}{f.name}` | {shown(f.default)} | {when} | {what} |')
        lines.append('')
    return '\n'.join(lines)


if __name__ == '__main__':
    print(page(), end='')
