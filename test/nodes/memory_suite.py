"""A memory node with a tiny planner of random weights, which stores in a folder of the test."""

from embodied_kv.config import BackboneConfig
from embodied_kv.model.planner import PlannerConfig
from embodied_kv.model.planner_checkpoint import random_planner, save_planner
from embodied_kv.msg import MemorySegment
from embodied_kv.nodes.memory import Memory
from embodied_kv.srv import MemoryPlan, MemoryQuery, MemoryRemove, MemoryStats, MemoryUpsert

SERVICES = {
    'upsert': MemoryUpsert,
    'remove': MemoryRemove,
    'query': MemoryQuery,
    'plan': MemoryPlan,
    'stats': MemoryStats,
}
CONFIG = PlannerConfig('test', BackboneConfig(32, 4, 4, 2, 8, 48, 260), max_tokens=512)
TABLE = (
    ('red cube', 'object', 'red cube: on the left table'),
    ('blue bin', 'place', 'blue bin: open, on the left table'),
    ('green ball', 'object', 'green ball: in the blue bin'),
)
QUESTION = 'where is the green ball?'


def parameters(folder, seed=3, **more):
    """Return parameters of a memory node that stores in `folder` and only works on request."""
    planner = folder / f'planner {seed}'
    if not planner.exists():
        made = random_planner(CONFIG, seed=seed)
        save_planner(planner, made.model.state_dict(), CONFIG, made.tokenizer)
    own = dict(
        storage_directory=str(folder / 'memory'),
        planner=str(planner),
        precompute=False,
        world_step_seconds=0.0,
    )
    return {
        **own,
        **dict(max_context_tokens=400, max_answer_tokens=8, recompute_ratio=0.5),
        'reuse_method': 'keep',
        **more,
    }


def begin(robot, folder, *others, **more):
    """Start a memory node together with nodes of other kinds; return the memory node."""
    nodes = robot.up(*others, Memory, **parameters(folder, **more))
    return nodes[-1] if others else nodes


def segments(*drafts):
    return [MemorySegment(id=id, kind=kind, text=text) for id, kind, text in drafts]


def call(robot, verb, **fields):
    return robot.call(SERVICES[verb], f'memory/{verb}', **fields)


def done(robot, verb, **fields):
    """Call a service that must succeed; return its response."""
    response = call(robot, verb, **fields)
    assert response.success, response.message
    return response


def texts(robot):
    """Return the text of each segment in memory, by id."""
    return {segment.id: segment.text for segment in done(robot, 'query', segments=1000).segments}
