"""A robot without a model, and policy servers for it."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / 'serving'))

from plain_server import LEAVE, STALL, PlainServer, actions  # noqa: F401
from server_cases import PATIENCE, busy, packed, running_server, unpacked  # noqa: F401

from embodied_kv.control.command import FRESH, SOURCES
from embodied_kv.nodes.remote.action import RemoteAction

AXES = 7  # dimensions of an action of `tabletop`
NOWHERE = 'ws://127.0.0.1:1'  # where no server listens


def sources(robot):
    return [SOURCES[chunk.source] for chunk in robot.chunks]


def fresh(robot):
    return sources(robot).count(FRESH)


def acting(robot, address, **options):
    """Start its action node and return it; no server is too slow for its limits."""
    patient = {
        'server__reply_timeout': PATIENCE,
        'max_chunk_age': 60.0,
        'missed_chunk_limit': 1000,
    }
    return robot.up(RemoteAction, **patient | {'server__address': address} | options)
