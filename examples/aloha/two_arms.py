"""gym-aloha's two ViperX arms with the task TransferCube: joints in, joints and images out.

Runs in the environment of gym-aloha only, and does not import this package: `transfer.yaml`
defines what both sides agree on. All values are in SI units.

gym-aloha renders three images of 640 x 480 at each of its 50 steps per second, with shadows and
four samples per pixel. To save CPU time, this module renders small images without them, on
request; model, starts, control and reward are gym-aloha's.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')  # its matrices are small
os.environ.setdefault('MUJOCO_GL', 'egl')  # the other headless renderer is osmesa
os.environ.setdefault('LP_NUM_THREADS', '0')  # Mesa's own threads make it slower here
import mujoco
import numpy as np
from dm_control.mujoco import Physics
from dm_control.rl.control import Environment
from gym_aloha.constants import ASSETS_DIR, DT
from gym_aloha.constants import normalize_puppet_gripper_position as to_unit
from gym_aloha.tasks import sim
from gym_aloha.utils import sample_box_pose

TICKS = 5  # gym-aloha's steps, of 0.02 s, between two commands
SECONDS = 8.0  # s of an episode, at most
INSTRUCTION = 'transfer the red cube'
ARMS = 'left', 'right'
PARTS = 'waist', 'shoulder', 'elbow', 'forearm_roll', 'wrist_angle', 'wrist_rotate', 'left_finger'
JOINTS = tuple(f'vx300s_{arm}/{part}' for arm in ARMS for part in PARTS)  # fingers: m
FINGERS = [6, 13]
GRIP = np.array([0.14, 0.0, 0.0])  # m, point between the fingertips in the gripper's frame
AROUND = 0.044  # m, largest finger position with the cube held, with a margin of 2 mm
HELD = round(0.5 / DT)  # steps for which the left hand alone must hold the cube
CAMERAS = {'high': 'top', 'left_wrist': 'left_wrist', 'right_wrist': 'right_wrist'}
UNDRAWN = mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION
WINDOWS = {'high': (0.0, -0.15, 0.46)}  # crop of a camera: middle and half a side, in ±1
WHOLE = 0.0, 0.0, 1.0


@dataclass(frozen=True)
class Seen:
    """An observation. time: s since the start.

    joints, speeds [14] rad and m, per s for speeds; pictures [N, N, 3] by view.
    """

    time: float
    joints: np.ndarray
    speeds: np.ndarray
    pictures: dict[str, np.ndarray]


class Transfer(sim.TransferCubeTask):
    """gym-aloha's task without its images at each step."""

    def get_observation(self, physics: Physics) -> dict:
        return {}


class TwoArms:
    """The arms, the table and the cube. size: side of an image, pixels; 0 for no cameras."""

    def __init__(self, size: int = 96) -> None:
        physics = Physics.from_xml_path(str(ASSETS_DIR / 'bimanual_viperx_transfer_cube.xml'))
        self._task = Transfer()
        self._env = Environment(physics, self._task, math.inf, control_timestep=DT)
        self.model, self.data = physics.model.ptr, physics.data.ptr
        self.model.vis.quality.offsamples = 0
        joints = [self.model.joint(name) for name in JOINTS]
        self.places = np.array([joint.qposadr[0] for joint in joints])
        self.dofs = np.array([joint.dofadr[0] for joint in joints])
        self._stiff = np.array([self.model.actuator(i).gainprm[0] for i in _actuators(self.model)])
        self.ranges = np.array([joint.range for joint in joints])  # [14, 2], of the robot's model
        self._fingers = {
            arm: {
                self.model.geom(f'vx300s_{arm}/10_{side}_gripper_finger').id
                for side in ('left', 'right')
            }
            for arm in ARMS
        }
        self._box, self._table = (self.model.geom(name).id for name in ('red_box', 'table'))
        self._renderer = mujoco.Renderer(self.model, size, size) if size else None
        self.reset(0)

    def reset(self, seed: int) -> None:
        """Reset arms and cube to gym-aloha's start of that seed."""
        sim.BOX_POSE[0] = sample_box_pose(seed)
        self._env.reset()
        self.steps, self.reward, self.best, self._alone = 0, 0, 0, 0
        self.told = self.joints

    def tick(self, joints: np.ndarray) -> None:
        """Take one of gym-aloha's steps with these set-points, [14] rad and m."""
        self.told = np.clip(joints, *self.ranges.T)
        action = self.told.copy()
        action[FINGERS] = to_unit(action[FINGERS])
        self.reward = int(self._env.step(action).reward)
        self.steps += 1
        self.best = max(self.best, self.reward)
        alone = self.reward == self._task.max_reward and not self.touches('right')
        self._alone = self._alone + 1 if alone else 0

    def step(self, joints: np.ndarray) -> None:
        """Take one period; the set-points move linearly from the last ones to these, [14]."""
        begin = self.told
        for tick in range(1, TICKS + 1):
            self.tick(begin + (joints - begin) * tick / TICKS)

    @property
    def is_passed(self) -> bool:
        """Whether the left hand alone has held the cube over the table for half a second."""
        return self._alone >= HELD

    @property
    def joints(self) -> np.ndarray:
        """Joint positions, [14] rad and m."""
        return self.data.qpos[self.places].copy()

    def see(self) -> Seen:
        """Return the current observation."""
        drawn = CAMERAS if self._renderer else {}
        return Seen(
            time=self.steps * DT,
            joints=self.joints,
            speeds=self.data.qvel[self.dofs].copy(),
            pictures={view: self.draw(c, WINDOWS.get(view, WHOLE)) for view, c in drawn.items()},
        )

    def draw(self, camera: str, window: tuple[float, float, float] = WHOLE) -> np.ndarray:
        """Return the image [N, N, 3] of one of gym-aloha's cameras, cropped to a window."""
        scene = self._renderer.scene
        self._renderer.update_scene(self.data, camera)
        for lens in scene.camera:
            _look(lens, *window)
        for flag in UNDRAWN:
            scene.flags[flag] = 0
        return self._renderer.render().copy()

    # ------------------------------------------------------------------ the simulator's truth

    def hand(self, arm: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the pose of the point between the fingers: [3] m, and [3, 3].

        x is ahead, y across the fingers.
        """
        body = self.model.body(f'vx300s_{arm}/gripper_link').id
        turned = self.data.xmat[body].reshape(3, 3)
        return self.data.xpos[body] + turned @ GRIP, turned.copy()

    @property
    def cube(self) -> tuple[np.ndarray, np.ndarray]:
        """Pose of the cube, [3] m and [3, 3], in the world's frame, as all poses here."""
        return self.data.geom_xpos[self._box].copy(), self.data.geom_xmat[self._box].reshape(3, 3)

    def cube_pixels(self) -> dict[str, np.ndarray]:
        """Return the column and row of the cube's centre by view, also outside the image.

        NaN if it is not in front of the camera.
        """
        half, found = (self._renderer.height if self._renderer else 1) / 2, {}
        for view, camera in CAMERAS.items():
            lens = self.model.camera(camera).id
            axes = self.data.cam_xmat[lens].reshape(3, 3)
            x, y, z = axes.T @ (self.cube[0] - self.data.cam_xpos[lens])
            ahead = -z * math.tan(math.radians(self.model.cam_fovy[lens]) / 2)
            *middle, side = WINDOWS.get(view, WHOLE)
            at = (np.array([x, y]) / (ahead if z < 0 else math.nan) - middle) / side
            found[view] = half * (1 + at * [1, -1])
        return found

    def jacobian(self, arm: str) -> np.ndarray:
        """Return [6, 6]: m/s and rad/s of the hand for rad/s of each joint but the fingers."""
        found = np.zeros((6, self.model.nv))
        body = self.model.body(f'vx300s_{arm}/gripper_link').id
        mujoco.mj_jac(self.model, self.data, found[:3], found[3:], self.hand(arm)[0], body)
        return found[:, self.dofs[7 * ARMS.index(arm) :][:6]]

    @property
    def sag(self) -> np.ndarray:
        """How far the arms hang below their set-points, [14] rad and m: weight over stiffness."""
        return self.data.qfrc_bias[self.dofs] / self._stiff

    def holds(self, arm: str) -> bool:
        """Return whether the arm's fingers have closed around the cube."""
        return self.touches(arm) > 0 and self.joints[FINGERS[ARMS.index(arm)]] < AROUND

    def touches(self, arm: str) -> int:
        """Return how many of the arm's two fingers touch the cube."""
        pairs = {frozenset(contact.geom) for contact in self.data.contact}
        return sum({self._box, finger} in pairs for finger in self._fingers[arm])


def _actuators(model: mujoco.MjModel) -> list[int]:
    """Return the actuator of each of JOINTS."""
    driven = model.actuator_trnid[:, 0].tolist()
    return [driven.index(model.joint(name).id) for name in JOINTS]


def _look(lens: mujoco.MjvGLCamera, column: float, row: float, side: float) -> None:
    """Crop the square image of a camera to a window.

    column, row: middle of the window, from -1 to 1; side: half of its side.
    """
    half = lens.frustum_top
    lens.frustum_center, lens.frustum_width = column * half, side * half
    lens.frustum_bottom, lens.frustum_top = (row - side) * half, (row + side) * half
