"""The arm follows its commands within its limits, and does so deterministically."""

import numpy as np
import pytest

from embodied_kv.demo.sim import kinematics
from embodied_kv.demo.sim.tabletop import JOINTS, SceneConfig, Tabletop, joint_limits


@pytest.fixture(scope='module')
def table():
    with Tabletop() as table:
        yield table


def wave(table: Tabletop, seed: int, look: bool = True) -> tuple[np.ndarray, list[bytes]]:
    """Return states and images of one second of seeded commands."""
    rng, states, pictures = np.random.default_rng(seed), [], []
    for _ in range(10):
        table.command(table.state() + rng.uniform(-0.2, 0.2, 7))
        table.step(0.1)
        states.append(table.state())
        if look:
            pictures += [image.tobytes() for image in table.render().values()]
    return np.array(states), pictures


def test_same_seed_and_commands_equal_states_and_images_byte_for_byte(table):
    table.reset(3)
    states, pictures = wave(table, 0)
    table.reset(9)
    wave(table, 1)
    table.reset(3)
    again, same = wave(table, 0)
    with Tabletop(seed=3) as other:
        fresh, equal = wave(other, 0)
    assert states.tobytes() == again.tobytes() == fresh.tobytes()
    assert pictures == same == equal


def test_rendering_does_not_change_what_happens(table):
    table.reset(4)
    seen, _ = wave(table, 0)
    table.reset(4)
    unseen, _ = wave(table, 0, look=False)
    assert seen.tobytes() == unseen.tobytes()


def test_state_is_seven_floats_in_the_order_of_the_joints(table):
    table.reset(0)
    state = table.state()
    assert state.dtype == np.float32 and state.shape == (len(JOINTS),) == (7,)
    assert JOINTS[-1] == 'gripper' and state[-1] == joint_limits()[1][-1]


@pytest.mark.parametrize('joint', ['shoulder_pan', 'wrist_roll', 'gripper'])
@pytest.mark.parametrize('side', [0, 1])
def test_commands_are_clamped_to_the_limits(table, joint, side):
    table.reset(0)
    target = table.state()
    target[JOINTS.index(joint)] = (-100.0, 100.0)[side]
    table.command(target)
    table.step(3.0)
    reached = table.state()[JOINTS.index(joint)]
    assert abs(reached - joint_limits()[side][JOINTS.index(joint)]) < 2e-3


@pytest.mark.parametrize('targets', [np.zeros(6), np.zeros((1, 7)), np.full(7, np.nan)])
def test_a_command_of_another_shape_or_not_finite_is_refused_and_the_arm_stays(table, targets):
    table.reset(0)
    before = table.state()
    with pytest.raises(ValueError, match='7 finite numbers'):
        table.command(targets)
    table.step(1.0)
    assert np.abs(table.state() - before).max() < 1e-3


def test_arm_reaches_its_target_within_a_second_and_stays(table):
    table.reset(0)
    target = np.append(kinematics.top_down([[0.5, 0.2, 0.15]], 0.5)[0], 0.0)
    table.command(target)
    table.step(1.0)
    assert np.abs(table.state() - target)[:6].max() < 0.005
    assert abs(table.state()[6] - target[6]) < 0.0005
    before = table.state()
    table.step(2.0)
    assert np.abs(table.state() - before).max() < 0.005


def test_arm_follows_a_ten_hertz_trajectory_without_overshoot(table):
    table.reset(0)
    start = table.state().astype(float)
    target = np.append(kinematics.top_down([[0.5, -0.2, 0.15]])[0], 0.04)
    gone = []
    for i in range(20):
        table.command(start + (target - start) * min(1, (i + 1) / 10))
        table.step(0.1)
        gone.append((table.state() - start)[0] / (target - start)[0])
    assert np.all(np.diff(gone) > -1e-3) and max(gone) < 1.01
    assert gone[9] > 0.9 and abs(gone[-1] - 1) < 1e-3


def test_arm_holds_its_pose_without_commands(table):
    table.reset(5)
    before = table.state()
    table.step(3.0)
    assert np.abs(table.state() - before).max() < 1e-3


def test_time_runs_as_stepped_even_in_uneven_steps(table):
    table.reset(0)
    assert table.time == 0
    for _ in range(90):
        table.step(1 / 30)
    assert abs(table.time - 3.0) < 0.0051


@pytest.mark.parametrize('seconds', [-0.1, float('nan'), float('inf')])
def test_a_time_that_is_negative_or_not_finite_is_refused(table, seconds):
    with pytest.raises(ValueError, match='seconds must be'):
        table.step(seconds)


def test_reset_counts_up_from_the_last_seed_and_draws_another_scene(table):
    table.reset(10)
    first = [o.name for o in table.objects()], [o.position.tolist() for o in table.objects()]
    table.reset()
    assert table.seed == 11
    assert first != (
        [o.name for o in table.objects()],
        [o.position.tolist() for o in table.objects()],
    )


def test_objects_rest_where_the_scene_put_them(table):
    for seed in range(5):
        table.reset(seed)
        table.step(1.0)
        for thing, truth in zip(table.scene.things, table.objects(), strict=True):
            assert np.allclose(truth.position, (*thing.position, thing.size[2] / 2), atol=2e-3)
            turned = (truth.yaw - thing.yaw + np.pi) % (2 * np.pi) - np.pi
            assert abs(turned) < 0.02
            assert (truth.name, truth.shape, truth.colour) == (
                thing.name,
                thing.shape,
                thing.colour,
            )


@pytest.mark.parametrize('shape', ['cube', 'cylinder', 'ball'])
def test_gripper_picks_an_object_up_and_holds_it(shape):
    with Tabletop(SceneConfig(shapes=(shape,), receptacles=(0, 0)), seed=2) as table:
        thing = table.objects()[0]
        x, y, _ = thing.position
        yaw = (thing.yaw + np.pi / 4) % (np.pi / 2) - np.pi / 4
        for height, opening in ((0.12, 0.04), (0.02, 0.04), (0.02, 0.0), (0.15, 0.0), (0.15, 0.0)):
            arm = kinematics.top_down([[x, y, height]], yaw)[0]
            start, target = table.state(), np.append(arm, opening)
            for share in np.linspace(0.1, 1, 10):
                table.command(start + share * (target - start))
                table.step(0.1)
        held = table.objects()[0].position
        assert np.linalg.norm(held - table.gripper_position()) < 0.025 and held[2] > 0.12
