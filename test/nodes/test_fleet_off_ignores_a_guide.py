"""A fleet whose engine.rtc is off passes over what a robot does meanwhile, good or bad."""

import numpy as np
from fleet_suite import JOINTS, Fleets

from embodied_kv.config import TINY
from embodied_kv.types import Guide

CHUNK = TINY.chunk_size


def test_the_chunk_is_as_without_it(robots, tmp_path):
    fleet = Fleets(robots, tmp_path)
    fleet.up()
    robot = fleet.join()
    runs = Guide(np.full((CHUNK, len(JOINTS)), 0.3), 3, np.ones(CHUNK))
    bad = Guide(np.full((1, 2), np.inf), CHUNK, np.full(3, np.nan))
    for task, guide in (('none', None), ('good', runs), ('bad', bad)):
        robot.ask(task=task, guide=guide)
        fleet.until(lambda task=task: robot.got(task))
    alone, *others = (np.array(robot.got(task)[0].values) for task in ('none', 'good', 'bad'))
    for other in others:
        np.testing.assert_array_equal(other, alone)
