"""The recorded state of a moment is enough to render the same image again."""

import cv2
import numpy as np
import pytest

from embodied_kv.demo.sim import kinematics
from embodied_kv.demo.sim.tabletop import SceneConfig, Tabletop


def lifted(episode):
    """Return a table where the gripper holds something up."""
    play = episode('pick', 3)
    assert play.follow(play.task).done and play.table.held()
    return play.table


def toppled(episode):
    """Return a table where the arm has knocked a cylinder over."""
    table = episode('put', 1_000_001).table
    name = next(thing.name for thing in table.objects() if thing.shape == 'cylinder')
    x, y, _ = next(thing.position for thing in table.objects() if thing.name == name)
    for beside in (0.07, -0.07):
        start = table.state()
        end = np.append(kinematics.top_down([(x, y + beside, 0.075)])[0], 0.0)
        for share in np.linspace(0, 1, 20):
            table.command(start + share * (end - start))
            table.step(0.05)
    upright = table.poses()[[thing.name for thing in table.objects()].index(name)]
    assert abs(upright[3:] @ (1, 0, 0, 0)) < 0.99
    return table


@pytest.mark.parametrize('happened', [lifted, toppled])
def test_a_restored_moment_looks_as_the_cameras_saw_it(episode, happened):
    table = happened(episode)
    with Tabletop(table.config, table.seed) as again:
        before = again.render()
        again.restore(table.state(), table.poses())
        seen, drawn = table.render(), again.render()
    for name in seen:
        # the right finger is not recorded: it follows the left one with some compliance
        assert different(seen[name], drawn[name]) < 0.02, name
        assert different(seen[name], before[name]) > 0.05, name


def test_a_restored_moment_lies_as_it_lay(episode):
    table = lifted(episode)
    with Tabletop(table.config, table.seed) as again:
        again.restore(table.state(), table.poses())
        np.testing.assert_allclose(again.poses(), table.poses(), atol=1e-9)
        np.testing.assert_allclose(again.gripper_position(), table.gripper_position(), atol=1e-6)


def test_a_smooth_picture_is_the_same_scene_at_any_size(episode):
    table = lifted(episode)
    large = SceneConfig(**vars(table.config) | {'image_size': 512})
    with Tabletop(large, table.seed) as plain, Tabletop(large, table.seed, smooth=True) as people:
        plain.restore(table.state(), table.poses())
        people.restore(table.state(), table.poses())
        edged, drawn = plain.render(), people.render()
        point = people.project(table.gripper_position(), 'front')
    for name, seen in table.render().items():
        small = cv2.resize(drawn[name], (64, 64), interpolation=cv2.INTER_AREA)
        assert different(seen, small) < 0.1, name
        assert 0.001 < different(edged[name], drawn[name]) < 0.05, name  # cylinders become round
    seen = table.project(table.gripper_position(), 'front')
    np.testing.assert_allclose((point + 0.5) / 8 - 0.5, seen, atol=0.01)


def test_poses_of_another_scene_are_refused(episode):
    table = episode('pick', 3).table
    with pytest.raises(ValueError, match=r'\(got \(7,\) and \(1, 7\)\)'):
        table.restore(table.state(), table.poses()[:1])


def different(a, b):
    """Return the share of pixels that differ by more than noise."""
    return (np.abs(a.astype(int) - b) > 24).any(-1).mean()
