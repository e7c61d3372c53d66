"""robosuite's Panda with the task Lift, as a robot: joints in, joints and images out.

Runs in the environment of robosuite only, and does not import this package: `lift.yaml` defines
what both sides agree on. All values are in SI units.

robosuite renders with shadows, reflections and four samples per pixel. To save CPU time, this
module renders without them, and without shapes that no camera sees; meshes, lights and cameras are
robosuite's.
"""

from __future__ import annotations

import logging
import math
import os
from dataclasses import dataclass

os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')  # its matrices are small
os.environ.setdefault('MUJOCO_GL', 'egl')  # the other headless renderer is osmesa
os.environ.setdefault('LP_NUM_THREADS', '0')  # Mesa's own threads make it slower here
# At each start robosuite warns about files and packages that are not needed here.
logging.getLogger('robosuite_logs').addFilter(lambda record: record.levelno >= logging.ERROR)
import mujoco  # noqa: E402
import numpy as np  # noqa: E402
import robosuite  # noqa: E402
from robosuite.controllers import load_composite_controller_config  # noqa: E402

FPS = 20
INSTRUCTION = 'lift the red cube'
CAMERAS = {'front': 'agentview', 'wrist': 'robot0_eye_in_hand'}
JOINTS = tuple(f'panda_joint{i}' for i in range(1, 8))
FINGER = 'panda_finger_joint1'
OPEN = 0.04  # m, distance of an open finger from the middle
STIFFNESS = 400.0  # 1/s²: the arm follows a set-point within 0.1 s
HELD = FPS // 2  # steps for which the cube must be up
ARM = {
    'type': 'JOINT_POSITION',
    'input_type': 'absolute',
    'kp': STIFFNESS,
    'damping_ratio': 1,
    'impedance_mode': 'fixed',
    'interpolation': None,
    'gripper': {'type': 'GRIP'},
}
SHOWN, HIDDEN = 1, 5  # groups of shapes: visual ones; those that are not rendered
UNDRAWN = mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION


@dataclass(frozen=True)
class Seen:
    """An observation. time: s since the start.

    joints [7] rad, finger m; speeds [7] rad/s; pictures [N, N, 3] by view.
    """

    time: float
    joints: np.ndarray
    finger: float
    speeds: np.ndarray
    pictures: dict[str, np.ndarray]


class PandaLift:
    """The arm, the table and the cube. size: side of an image, pixels; 0 for no cameras."""

    def __init__(self, size: int = 96) -> None:
        control = load_composite_controller_config(robot='Panda')
        control['body_parts']['right'] = dict(ARM)
        self._env = robosuite.make(
            'Lift',
            robots='Panda',
            controller_configs=control,
            control_freq=FPS,
            has_offscreen_renderer=False,
            use_camera_obs=False,
            use_object_obs=False,
            hard_reset=False,
            ignore_done=True,
            seed=0,
        )
        self._arm = self._env.robots[0]
        self.model, self.data = self._env.sim.model._model, self._env.sim.data._data
        self.model.vis.quality.offsamples = 0
        self._places = np.array(self._arm._ref_joint_pos_indexes)
        self.dofs = np.array(self._arm._ref_joint_vel_indexes)
        self._fingers = np.array(self._arm._ref_gripper_joint_pos_indexes['right'])
        self.hand = self._arm.eef_site_id['right']
        self._renderer = mujoco.Renderer(self.model, size, size) if size else None
        self._drawn = mujoco.MjvOption()
        self._drawn.geomgroup[:] = 0
        self._drawn.geomgroup[SHOWN] = 1
        self._groups = self.model.geom_group.copy()
        self._drawn.sitegroup[:] = 0
        self.reset(0)

    def reset(self, seed: int) -> None:
        """Reset arm and cube to a start that is a function of the seed."""
        self._env.rng.bit_generator.state = np.random.default_rng(seed).bit_generator.state
        self._env.reset()
        self.steps = self._up = 0

    def step(self, joints: np.ndarray, finger: float) -> None:
        """Take one period towards the set-points. joints [7] rad; finger: m, open above half."""
        grip = -1.0 if finger > OPEN / 2 else 1.0
        self._env.step(np.append(np.clip(joints, *self.ranges.T), grip))
        self.steps += 1
        self._up = self._up + 1 if self._env._check_success() else 0

    @property
    def ranges(self) -> np.ndarray:
        """Limits of the joints by the robot's own model, [7, 2] rad."""
        return np.array([self.model.joint(f'robot0_joint{i}').range for i in range(1, 8)])

    @property
    def is_lifted(self) -> bool:
        """Whether robosuite's own success has held for half a second without a break."""
        return self._up >= HELD

    @property
    def joints(self) -> np.ndarray:
        """Joint positions, [7] rad."""
        return self.data.qpos[self._places].copy()

    def see(self) -> Seen:
        """Return the current observation."""
        return Seen(
            time=self.steps / FPS,
            joints=self.joints,
            finger=float(np.mean(np.abs(self.data.qpos[self._fingers]))),
            speeds=self.data.qvel[self.dofs].copy(),
            pictures={} if self._renderer is None else self._draw(),
        )

    def _draw(self) -> dict[str, np.ndarray]:
        found = {}
        for view, camera in CAMERAS.items():
            self.model.geom_group[:] = np.where(self._outside(camera), HIDDEN, self._groups)
            self._renderer.update_scene(self.data, camera, scene_option=self._drawn)
            for flag in UNDRAWN:
                self._renderer.scene.flags[flag] = 0
            found[view] = self._renderer.render().copy()
        return found

    def _outside(self, camera: str) -> np.ndarray:
        """Return whether the camera cannot see each shape, by its bounding sphere: bool [G]."""
        lens, around = self.model.camera(camera).id, self.model.geom_rbound  # 0: infinite
        axes = self.data.cam_xmat[lens].reshape(3, 3)
        aside, up, back = ((self.data.geom_xpos - self.data.cam_xpos[lens]) @ axes).T
        half = math.radians(self.model.cam_fovy[lens]) / 2
        beside = np.maximum(np.abs(aside), np.abs(up)) * math.cos(half) + back * math.sin(half)
        return (around > 0) & (np.maximum(beside, back) > around)

    # ------------------------------------------------------------------ the simulator's truth

    @property
    def hand_pose(self) -> tuple[np.ndarray, np.ndarray]:
        """Pose of the point between the fingers: [3] m, and [3, 3] with y across the fingers."""
        return self.data.site_xpos[self.hand].copy(), self.data.site_xmat[self.hand].reshape(3, 3)

    @property
    def cube_pose(self) -> tuple[np.ndarray, np.ndarray]:
        """Pose of the cube: [3] m and [3, 3]."""
        body = self._env.cube_body_id
        return self.data.xpos[body].copy(), self.data.xmat[body].reshape(3, 3)

    @property
    def cube(self) -> np.ndarray:
        """Position of the cube in the arm's root frame, [3] m."""
        root = self.model.body('robot0_base').id
        return self.data.xmat[root].reshape(3, 3).T @ (self.cube_pose[0] - self.data.xpos[root])

    def cube_pixels(self) -> dict[str, np.ndarray]:
        """Return the column and row of the cube's centre by view, also outside the image.

        NaN if it is not in front of the camera.
        """
        half, found = (self._renderer.height if self._renderer else 1) / 2, {}
        for view, camera in CAMERAS.items():
            lens = self.model.camera(camera).id
            axes = self.data.cam_xmat[lens].reshape(3, 3)
            x, y, z = axes.T @ (self.cube_pose[0] - self.data.cam_xpos[lens])
            focal = half / math.tan(math.radians(self.model.cam_fovy[lens]) / 2)
            ahead = -z if z < 0 else math.nan
            found[view] = half + focal / ahead * np.array([x, -y])
        return found

    @property
    def table(self) -> float:
        """Height of the table top, m."""
        return float(self._env.table_offset[2])

    @property
    def is_grasped(self) -> bool:
        """Whether both fingers touch the cube."""
        return self._env._check_grasp(self._arm.gripper['right'], self._env.cube)

    def jacobian(self) -> np.ndarray:
        """Return [6, 7]: m/s and rad/s of the hand for each joint's rad/s."""
        linear, angular = np.zeros((2, 3, self.model.nv))
        mujoco.mj_jacSite(self.model, self.data, linear, angular, self.hand)
        return np.vstack([linear, angular])[:, self.dofs]
