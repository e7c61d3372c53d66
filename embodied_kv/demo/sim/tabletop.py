"""The simulated robot: an arm over a table with coloured objects, two cameras, in MuJoCo.

Knows physics and pictures. Does not know ROS, tasks or policies. One instance belongs to one
thread, as its OpenGL context does.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import mujoco
import numpy as np

from embodied_kv.demo.sim import kinematics
from embodied_kv.demo.sim.camera import project
from embodied_kv.demo.sim.gl import open_context
from embodied_kv.demo.sim.kinematics import JOINTS, joint_limits
from embodied_kv.demo.sim.mjcf import TIMESTEP, write_mjcf
from embodied_kv.demo.sim.scene import CAMERAS, Scene, SceneConfig, draw_scene

__all__ = ['JOINTS', 'ObjectTruth', 'SceneConfig', 'Tabletop', 'Truth', 'joint_limits']

BETWEEN = 0.024  # m from the gripper point, at most, to the middle of what the fingers hold


@dataclass(frozen=True, eq=False)
class ObjectTruth:
    """Where an object really is.

    position: float64 [3] m, of its centre. yaw: rad. size: float64 [3] m, full extents.
    """

    name: str
    shape: str
    colour: str
    position: np.ndarray
    yaw: float
    size: np.ndarray


@dataclass(frozen=True, eq=False)
class Truth:
    """A moment. grip: float64 [3] m, the gripper point. held: a thing's name or ''."""

    things: tuple[ObjectTruth, ...]
    grip: np.ndarray
    held: str


class Tabletop:
    """A seeded tabletop: same seed and commands, same states and pictures, bit for bit.

    config: the ranges scenes are drawn from. seed: of the first scene. smooth: pictures for
    people, where a cylinder is round; the robot's cameras are plainer. Raises RuntimeError that
    says what to install when no off-screen OpenGL opens. Close it, or use it in a `with`.
    """

    def __init__(
        self, config: SceneConfig | None = None, seed: int = 0, *, smooth: bool = False
    ) -> None:
        self.config, self._smooth = config or SceneConfig(), smooth
        self._lower, self._upper = joint_limits()
        size = self.config.image_size
        self._view = mujoco.MjrRect(0, 0, size, size)
        self._pixels = np.empty((size, size, 3), np.uint8)
        self._option, self._camera = mujoco.MjvOption(), mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self.reset(seed)
        self._gl = open_context(size, size)
        # Only primitives are drawn, so one mjrContext serves the models of all scenes.
        self._context = mujoco.MjrContext(self._model, mujoco.mjtFontScale.mjFONTSCALE_50.value)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._context)
        self._release = weakref.finalize(self, _release, self._gl, self._context)
        self._release.atexit = False  # by then the display may be gone, and all of it is freed

    def reset(self, seed: int | None = None) -> None:
        """Sets time to 0 and draws the scene of `seed`; without one, of the last seed plus one."""
        self.seed = self.seed + 1 if seed is None else int(seed)
        self.scene: Scene = draw_scene(self.config, np.random.default_rng(self.seed))
        self._model = mujoco.MjModel.from_xml_string(
            write_mjcf(self.scene, self.config.image_size, self._smooth)
        )
        self._data = mujoco.MjData(self._model)
        self._mjv = mujoco.MjvScene(self._model, maxgeom=100)
        for flag in ('SHADOW', 'REFLECTION', 'SKYBOX', 'HAZE', 'FOG'):
            self._mjv.flags[getattr(mujoco.mjtRndFlag, f'mjRND_{flag}')] = 0
        joints = [self._model.joint(name).qposadr[0] for name in (*JOINTS, 'right_finger')]
        self._joints, self._right_finger = np.array(joints[: len(JOINTS)]), joints[-1]
        self._fingers = {self._model.body(name).id for name in ('gripper', 'right_finger')}
        start = np.append(kinematics.top_down(self.scene.gripper)[0], self._upper[-1])
        self._data.qpos[joints] = np.append(start, start[-1])
        self._data.ctrl[:] = start
        self._owed = 0.0
        self._place()

    def command(self, targets: np.ndarray) -> None:
        """Sets the actuators' target positions [7], clamped to the limits, until the next command.

        Raises ValueError for another shape or a value that is not finite.
        """
        targets = np.asarray(targets, np.float64)
        if targets.shape != (len(JOINTS),) or not np.isfinite(targets).all():
            raise ValueError(
                f'a command is {len(JOINTS)} finite numbers ({", ".join(JOINTS)}): got {targets}'
            )
        self._data.ctrl[:] = np.clip(targets, self._lower, self._upper)

    def step(self, seconds: float) -> None:
        """Simulates that time in steps of 5 ms; the rest of a step is owed to the next call.

        Raises ValueError for a time that is negative or not finite.
        """
        if not 0 <= seconds < np.inf:
            raise ValueError(f'cannot simulate {seconds} s')
        self._owed += seconds
        steps = int(self._owed / TIMESTEP + 1e-6)
        if steps > 0:
            self._owed -= steps * TIMESTEP
            mujoco.mj_step(self._model, self._data, steps)
            self._place()

    def _place(self) -> None:
        """Bodies, cameras and lights where the joints say; mj_step leaves them one step behind."""
        mujoco.mj_kinematics(self._model, self._data)
        mujoco.mj_comPos(self._model, self._data)
        mujoco.mj_camlight(self._model, self._data)

    def restore(self, joints: np.ndarray, poses: np.ndarray) -> None:
        """Puts arm and things where they were: `state()` and `poses()` of an earlier moment.

        The scene stays, and so do receptacles. What pushes and touches is not restored: it is to
        look at, not to go on from. Raises ValueError for arrays of another shape.
        """
        bodies = [self._model.body(f'thing {i}') for i in range(len(self.scene.things))]
        if np.shape(joints) != (len(JOINTS),) or np.shape(poses) != (len(bodies), 7):
            raise ValueError(
                f'joints {np.shape(joints)} and poses {np.shape(poses)} are not those of '
                f'{len(JOINTS)} joints and {len(bodies)} things'
            )
        self._data.qpos[self._joints] = joints
        self._data.qpos[self._right_finger] = joints[-1]
        for body, pose in zip(bodies, poses, strict=True):
            if body.jntnum[0]:  # a receptacle has no joint
                start = self._model.jnt_qposadr[body.jntadr[0]]
                self._data.qpos[start : start + 7] = pose
        self._place()

    @property
    def time(self) -> float:
        """Simulated seconds since the reset."""
        return self._data.time

    def state(self) -> np.ndarray:
        """Joint positions, float32 [7] in the order of JOINTS: rad, and m for the gripper."""
        return self._data.qpos[self._joints].astype(np.float32)

    def render(self) -> dict[str, np.ndarray]:
        """What each camera sees: uint8 [image_size, image_size, 3] RGB by the camera's name."""
        self._gl.make_current()
        images = {}
        for name in CAMERAS:
            self._camera.fixedcamid = self._model.camera(name).id
            mujoco.mjv_updateScene(
                self._model,
                self._data,
                self._option,
                None,
                self._camera,
                mujoco.mjtCatBit.mjCAT_ALL.value,
                self._mjv,
            )
            mujoco.mjr_render(self._view, self._mjv, self._context)
            mujoco.mjr_readPixels(self._pixels, None, self._view, self._context)
            images[name] = self._pixels[::-1].copy()  # OpenGL's first row is the lowest
        return images

    def objects(self) -> tuple[ObjectTruth, ...]:
        """Every object and receptacle as it lies now."""
        truths = []
        for i, thing in enumerate(self.scene.things):
            body = self._data.body(f'thing {i}')
            yaw = float(np.arctan2(body.xmat[3], body.xmat[0]))
            truths.append(
                ObjectTruth(
                    thing.name,
                    thing.shape,
                    thing.colour,
                    body.xpos.copy(),
                    yaw,
                    np.array(thing.size),
                )
            )
        return tuple(truths)

    def poses(self) -> np.ndarray:
        """Where every thing is, in the order of the scene: float64 [things, 7].

        x, y, z in m, then the unit quaternion w, x, y, z.
        """
        bodies = [self._data.body(f'thing {i}') for i in range(len(self.scene.things))]
        return np.array([(*body.xpos, *body.xquat) for body in bodies])

    def truth(self) -> Truth:
        """What a task is judged by."""
        return Truth(self.objects(), self.gripper_position(), self.held())

    def held(self) -> str:
        """The thing that both fingers touch and that is between them, or ''."""
        touched: dict[int, set[int]] = {}
        for pair in self._model.geom_bodyid[self._data.contact.geom]:
            for finger, thing in (pair, pair[::-1]):
                if finger in self._fingers:
                    touched.setdefault(int(thing), set()).add(int(finger))
        grip = self.gripper_position()
        for i, thing in enumerate(self.scene.things):
            body = self._data.body(f'thing {i}')
            apart = np.hypot(*(body.xpos - grip)[:2])
            if len(touched.get(body.id, ())) == 2 and apart < BETWEEN:
                return thing.name
        return ''

    def gripper_position(self) -> np.ndarray:
        """The point between the fingertips, float64 [3] m."""
        return self._data.site('grip').xpos.copy()

    def forward(self, joints: np.ndarray) -> np.ndarray:
        """Gripper points [N, 3] m of joint vectors [N, 7], whatever the arm does now."""
        return kinematics.forward(joints)

    def project(self, points: np.ndarray, camera: str) -> np.ndarray:
        """Where points [N, 3] (m) appear: pixels [N, 2] as (column, row).

        Whole numbers are pixel centres. A point behind the camera is NaN. Raises KeyError for
        an unknown camera.
        """
        view, fovy = self._data.camera(camera), self._model.camera(camera).fovy[0]
        return project(points, view.xpos, view.xmat.reshape(3, 3), fovy, self.config.image_size)

    def sees(self, points: np.ndarray) -> np.ndarray:
        """Whether points [N, 3] (m) lie in the picture of any camera, hidden or not: bool [N]."""
        edge = self.config.image_size - 0.5
        pixels = np.stack([self.project(points, name) for name in CAMERAS])
        return ((pixels >= -0.5) & (pixels <= edge)).all(-1).any(0)

    def close(self) -> None:
        """Frees the OpenGL context; a second call does nothing."""
        self._release()

    def __enter__(self) -> Tabletop:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _release(gl, context: mujoco.MjrContext) -> None:
    gl.make_current()
    context.free()
    gl.free()
