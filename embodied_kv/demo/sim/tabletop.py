"""The simulated robot in MuJoCo: an arm, a table with coloured objects, and two cameras.

An instance belongs to one thread, because its OpenGL context does. Off-screen OpenGL uses EGL or
OSMesa.
"""

from __future__ import annotations

import ctypes.util
import importlib
import os
import weakref
from contextlib import suppress
from dataclasses import dataclass, field

import mujoco
import numpy as np

from embodied_kv.demo.sim import kinematics
from embodied_kv.demo.sim.camera import project
from embodied_kv.demo.sim.kinematics import JOINTS, joint_limits
from embodied_kv.demo.sim.mjcf import PARKED, TIMESTEP, write_mjcf
from embodied_kv.demo.sim.scene import CAMERAS, COVER, Scene, SceneConfig, draw_scene

__all__ = ['JOINTS', 'ObjectTruth', 'SceneConfig', 'Tabletop', 'Truth', 'joint_limits']

BETWEEN = 0.024  # m, largest distance of a held thing's middle from the gripper point
_LIBRARIES = {'egl': 'EGL', 'osmesa': 'OSMesa'}


@dataclass(frozen=True, eq=False)
class ObjectTruth:
    """The true pose of an object.

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
    """The true state.

    grip: float64 [3] m, the gripper point. held: name of a thing, or ''. covers: float64 [C, 2] m,
    the centres of the covers on the table.
    """

    things: tuple[ObjectTruth, ...]
    grip: np.ndarray
    held: str
    covers: np.ndarray = field(default_factory=lambda: np.zeros((0, 2)))


class Tabletop:
    """A seeded tabletop: same seed and commands give the same states and pictures, bit by bit.

    config: the ranges of scenes. seed: of the first scene. smooth: cylinders are drawn round, for
    the film; the cameras of the robot draw fewer sides. Raises RuntimeError where off-screen
    OpenGL does not open. A context manager.
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
        # Scenes have only primitives, so one mjrContext serves all models.
        self._context = mujoco.MjrContext(self._model, mujoco.mjtFontScale.mjFONTSCALE_50.value)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._context)
        self._release = weakref.finalize(self, _release, self._gl, self._context)
        self._release.atexit = False  # the display may be closed by then

    def reset(self, seed: int | None = None) -> None:
        """Reset the time, and draw the scene of `seed`; None for the last seed plus one."""
        self.seed: int = self.seed + 1 if seed is None else int(seed)
        self.scene: Scene = draw_scene(self.config, np.random.default_rng(self.seed))
        self._model: mujoco.MjModel = mujoco.MjModel.from_xml_string(
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
        """Set the target positions [7] of the actuators, clamped to the limits.

        Raises ValueError for another shape or a value that is not finite.
        """
        targets = np.asarray(targets, np.float64)
        if targets.shape != (len(JOINTS),) or not np.isfinite(targets).all():
            raise ValueError(
                f'targets must be {len(JOINTS)} finite numbers: {", ".join(JOINTS)} '
                f'(got {targets})'
            )
        self._data.ctrl[:] = np.clip(targets, self._lower, self._upper)

    def step(self, seconds: float) -> None:
        """Simulate in steps of TIMESTEP; the next call adds the remaining part of a step.

        Raises ValueError for a time that is negative or not finite.
        """
        if not 0 <= seconds < np.inf:
            raise ValueError(f'seconds must be >= 0 and finite (got {seconds})')
        self._owed += seconds
        steps = int(self._owed / TIMESTEP + 1e-6)
        if steps > 0:
            self._owed -= steps * TIMESTEP
            mujoco.mj_step(self._model, self._data, steps)
            self._place()

    def _place(self) -> None:
        """Update bodies, cameras and lights, which mj_step leaves one step behind the joints."""
        mujoco.mj_kinematics(self._model, self._data)
        mujoco.mj_comPos(self._model, self._data)
        mujoco.mj_camlight(self._model, self._data)

    def restore(self, joints: np.ndarray, poses: np.ndarray) -> None:
        """Restore the arm and the things from `state()` and `poses()` of an earlier moment.

        Velocities and contacts are not restored: the result is for rendering, not for simulation.
        Raises ValueError for arrays of another shape.
        """
        bodies = [self._model.body(f'thing {i}') for i in range(len(self.scene.things))]
        if np.shape(joints) != (len(JOINTS),) or np.shape(poses) != (len(bodies), 7):
            raise ValueError(
                f'joints and poses must have the shapes ({len(JOINTS)},) and ({len(bodies)}, 7) '
                f'(got {np.shape(joints)} and {np.shape(poses)})'
            )
        self._data.qpos[self._joints] = joints
        self._data.qpos[self._right_finger] = joints[-1]
        for body, pose in zip(bodies, poses, strict=True):
            if body.jntnum[0]:  # a receptacle has no joint
                start = self._model.jnt_qposadr[body.jntadr[0]]
                self._data.qpos[start : start + 7] = pose
        self._place()

    def arrange(self, joints: np.ndarray, poses: np.ndarray) -> None:
        """Set the arm and the things, as `restore` does, at rest: the simulation continues there.

        The arm's targets are `joints`. Raises ValueError for arrays of another shape.
        """
        self.restore(joints, poses)
        self._data.qvel[:] = 0
        self.command(joints)
        mujoco.mj_forward(self._model, self._data)

    def cover(self, points: np.ndarray) -> None:
        """Put covers over points [n, 2] (m) of the table, and all others out of sight.

        Raises ValueError for more points than the scene has covers.
        """
        if len(points) > self.scene.covers:
            raise ValueError(
                f'points must be at most {self.scene.covers}, the covers of the scene '
                f'(got {len(points)})'
            )
        self._data.mocap_pos[:] = PARKED
        self._data.mocap_pos[: len(points), :2] = points
        self._data.mocap_pos[: len(points), 2] = COVER[2] / 2
        self._place()

    @property
    def time(self) -> float:
        """Simulated seconds since the reset."""
        return self._data.time

    def state(self) -> np.ndarray:
        """Return joint positions, float32 [7] in the order of JOINTS: rad, m for the gripper."""
        return self._data.qpos[self._joints].astype(np.float32)

    def render(self) -> dict[str, np.ndarray]:
        """Return uint8 [image_size, image_size, 3] RGB by the name of the camera."""
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
        """Return the pose of every object and receptacle."""
        return tuple(
            ObjectTruth(t.name, t.shape, t.colour, body.xpos.copy(), _yaw(body), np.array(t.size))
            for t, body in zip(self.scene.things, self._bodies(), strict=True)
        )

    def poses(self) -> np.ndarray:
        """Return the poses float64 [things, 7] in the order of the scene.

        x, y, z in m, then the unit quaternion w, x, y, z.
        """
        return np.array([(*body.xpos, *body.xquat) for body in self._bodies()])

    def _bodies(self) -> list:
        return [self._data.body(f'thing {i}') for i in range(len(self.scene.things))]

    def truth(self) -> Truth:
        covers = self._data.mocap_pos
        on_the_table = covers[covers[:, 2] > 0, :2].copy()
        return Truth(self.objects(), self.gripper_position(), self.held(), on_the_table)

    def held(self) -> str:
        """Return the name of the thing that both fingers touch and enclose, or ''."""
        touched: dict[int, set[int]] = {}
        for pair in self._model.geom_bodyid[self._data.contact.geom]:
            for finger, thing in (pair, pair[::-1]):
                if finger in self._fingers:
                    touched.setdefault(int(thing), set()).add(int(finger))
        grip = self.gripper_position()
        for thing, body in zip(self.scene.things, self._bodies(), strict=True):
            apart = np.hypot(*(body.xpos - grip)[:2])
            if len(touched.get(body.id, ())) == 2 and apart < BETWEEN:
                return thing.name
        return ''

    def gripper_position(self) -> np.ndarray:
        """Return the point between the fingertips, float64 [3] m."""
        return self._data.site('grip').xpos.copy()

    def project(self, points: np.ndarray, camera: str) -> np.ndarray:
        """Return the pixels [N, 2] as (column, row) of points [N, 3] (m).

        Whole numbers are pixel centres. A point behind the camera is NaN. Raises KeyError for
        an unknown camera.
        """
        view, fovy = self._data.camera(camera), self._model.camera(camera).fovy[0]
        return project(points, view.xpos, view.xmat.reshape(3, 3), fovy, self.config.image_size)

    def sees(self, points: np.ndarray) -> np.ndarray:
        """Return whether points [N, 3] (m) are in the picture of any camera, occluded or not."""
        edge = self.config.image_size - 0.5
        pixels = np.stack([self.project(points, name) for name in CAMERAS])
        return np.any(np.all((pixels >= -0.5) & (pixels <= edge), -1), 0)

    def close(self) -> None:
        """Free the OpenGL context; a second call does nothing."""
        self._release()

    def __enter__(self) -> Tabletop:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def backend() -> str:
    """Return 'egl' or 'osmesa': by MUJOCO_GL, else the first with an installed library.

    Raises RuntimeError, with the packages to install, where there is none.
    """
    requested = os.environ.get('MUJOCO_GL', '').lower().strip()
    if requested in _LIBRARIES:
        return requested
    for name, library in _LIBRARIES.items():
        if ctypes.util.find_library(library):
            return name
    raise RuntimeError(
        'no off-screen OpenGL for the cameras: run `apt-get install -y libegl1 libosmesa6`'
    )


def open_context(width: int, height: int):
    """Return a current GL context of at least that size; the caller frees it with `.free()`.

    Raises RuntimeError, with backend and remedy, where it does not open.
    """
    name = backend()
    # Mesa and Triton each have an LLVM: Triton, which torch loads late, must be loaded first.
    with suppress(ImportError):
        importlib.import_module('triton')
    # Threads of Mesa are slower at this image size, and compete with the policy for cores.
    os.environ.setdefault('LP_NUM_THREADS', '0')
    try:
        context = importlib.import_module(f'mujoco.{name}').GLContext(width, height)
        context.make_current()
    except Exception as error:  # PyOpenGL raises many types for one cause
        raise RuntimeError(
            f'off-screen OpenGL does not open with {name} ({type(error).__name__}): '
            'run `apt-get install -y libegl1 libosmesa6`, or set MUJOCO_GL to egl or osmesa'
        ) from error
    return context


def _yaw(body) -> float:
    return float(np.arctan2(body.xmat[3], body.xmat[0]))


def _release(gl, context: mujoco.MjrContext) -> None:
    gl.make_current()
    context.free()
    gl.free()
