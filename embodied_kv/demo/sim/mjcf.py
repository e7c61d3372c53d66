"""The MJCF document (MuJoCo's XML) of a Scene and the arm.

Collision classes (contype, conaffinity): table and receptacles 1, 0; objects 2, 3; arm 4, 3;
covers 0, 4. So the arm collides with table, objects and covers, and never with itself.
"""

from __future__ import annotations

import numpy as np

from embodied_kv.demo.sim.camera import axes_towards
from embodied_kv.demo.sim.kinematics import (
    FOREARM,
    JOINTS,
    LOWER,
    SHOULDER,
    TOOL,
    UPPER,
    UPPER_ARM,
)
from embodied_kv.demo.sim.scene import (
    COVER,
    COVER_RGB,
    FLOORS,
    RECEPTACLES,
    WALL,
    Scene,
    Thing,
)

TIMESTEP = 0.001  # s; at 5 ms a held thing ran ahead of the arm, and slid out of the fingers
PARKED = (0.0, 0.0, -2.0)  # m, below the floor: no camera sees a cover there
_AXES = ('0 0 1', '0 1 0', '0 1 0', '1 0 0', '0 1 0', '0 0 1')
_GAINS = ((900, 60), (900, 60), (600, 36), (120, 5), (120, 5), (60, 2))  # Nm/rad, Nms/rad


def write_mjcf(scene: Scene, image_size: int, smooth: bool = False) -> str:
    """Return the MJCF document with offscreen pictures of image_size.

    Body `thing i` is scene.things[i], mocap bodies are covers. smooth: round things are drawn
    round, with equal physics.
    """
    slices, stacks = (32, 16) if smooth else (8, 6)
    light, ambient = (_text((v,) * 3) for v in (scene.light, scene.ambient))
    direction = _text(-np.array(scene.light_from))
    return f"""<mujoco model="tabletop">
  <compiler angle="radian" autolimits="true"/>
  <option timestep="{TIMESTEP}" integrator="implicitfast" cone="elliptic" impratio="10"/>
  <visual>
    <global offwidth="{image_size}" offheight="{image_size}"/>
    <quality offsamples="0" numslices="{slices}" numstacks="{stacks}" numquads="1"/>
    <headlight ambient="{ambient}" diffuse="0.12 0.12 0.12" specular="0 0 0"/>
    <map znear="0.01" zfar="10"/>
  </visual>
  <default>
    <geom contype="4" conaffinity="3" rgba="0.93 0.93 0.91 1" density="300"/>
    <default class="joint"><geom rgba="0.28 0.30 0.33 1"/></default>
    <default class="finger">
      <geom rgba="0.16 0.17 0.19 1" friction="1.6 0.05 0.001" condim="4" solref="0.01 1"/>
    </default>
    <default class="table"><geom contype="1" conaffinity="0" friction="0.8 0.02 0.001"/></default>
    <default class="thing">
      <geom contype="2" conaffinity="3" friction="0.8 0.02 0.001" condim="4" solref="0.01 1"/>
    </default>
    <default class="seen"><geom contype="0" conaffinity="0" mass="0.001"/></default>
  </default>
  <worldbody>
    <light pos="{_text(scene.light_from)}" dir="{direction}" cutoff="90" exponent="0"
      attenuation="1 0 0" diffuse="{light}" specular="0 0 0" castshadow="false"/>
    <camera name="front" pos="{_text(scene.eye)}" fovy="{scene.fovy['front']:.6f}"
      xyaxes="{_looking(scene.eye, scene.target)}"/>
    <geom class="seen" name="floor" type="plane" pos="0 0 -0.75" size="4 4 0.1"
      rgba="0.30 0.31 0.33 1"/>
    <geom class="table" name="table" type="box" pos="0.3 0 -0.02" size="0.45 0.5 0.02"
      rgba="{_text(scene.table)} 1"/>
    {_arm(scene.fovy['wrist'])}
    {''.join(_thing(i, thing) for i, thing in enumerate(scene.things))}{_covers(scene.covers)}
  </worldbody>
  <equality><joint joint1="gripper" joint2="right_finger" solref="0.01 1"/></equality>
  <actuator>
    {''.join(_actuators())}
    <position name="gripper" joint="gripper" kp="700" kv="25" forcerange="-14 14"
      ctrlrange="{LOWER[6]} {UPPER[6]}"/>
  </actuator>
</mujoco>"""


def _actuators():
    for joint, low, high, (kp, kv) in zip(JOINTS, LOWER, UPPER, _GAINS, strict=False):
        gains, span = f'kp="{kp}" kv="{kv}"', f'ctrlrange="{low} {high}"'
        yield f'<position name="{joint}" joint="{joint}" {gains} {span}/>\n    '


def _arm(fovy: float) -> str:
    def hinge(i: int) -> str:
        name, span = f'name="{JOINTS[i]}"', f'range="{LOWER[i]} {UPPER[i]}"'
        return f'<joint {name} axis="{_AXES[i]}" {span} armature="0.02" damping="0.2"/>'

    def finger(name: str, side: int) -> str:
        return f"""<body name="{name}" pos="0 {side * 0.006} -0.115" gravcomp="1">
            <joint name="{name}" type="slide" axis="0 {side} 0" range="{LOWER[6]} {UPPER[6]}"
              armature="0.02" damping="1"/>
            <geom class="finger" type="box" size="0.011 0.006 0.032" pos="0 0 -0.022"/>
          </body>"""

    return f"""<geom class="joint" type="cylinder" size="0.075 0.02" pos="0 0 0.02"/>
    <geom type="cylinder" size="0.05 0.06" pos="0 0 0.09"/>
    <body name="shoulder" pos="0 0 {SHOULDER}" gravcomp="1">{hinge(0)}
      <geom class="joint" type="cylinder" size="0.052 0.055" euler="1.5708 0 0"/>
      <body name="upper_arm" gravcomp="1">{hinge(1)}
        <geom type="capsule" size="0.034" fromto="0 0 0.03 0 0 {UPPER_ARM - 0.02}"/>
        <body name="elbow" pos="0 0 {UPPER_ARM}" gravcomp="1">{hinge(2)}
          <geom class="joint" type="cylinder" size="0.042 0.046" euler="1.5708 0 0"/>
          <body name="forearm" gravcomp="1">{hinge(3)}
            <geom type="capsule" size="0.028" fromto="0.03 0 0 {FOREARM - 0.03} 0 0"/>
            <body name="wrist" pos="{FOREARM} 0 0" gravcomp="1">{hinge(4)}
              <geom class="joint" type="cylinder" size="0.030 0.034" euler="1.5708 0 0"/>
              <body name="hand" gravcomp="1">{hinge(5)}
                <geom type="cylinder" size="0.024 0.025" pos="0 0 -0.045"/>
                <geom class="joint" type="box" size="0.020 0.056 0.014" pos="0 0 -0.082"/>
                <geom class="seen" type="box" size="0.010 0.014 0.010" pos="0.062 0 -0.062"
                  rgba="0.1 0.1 0.1 1"/>
                <geom class="seen" type="box" size="0.022 0.006 0.004" pos="0.036 0 -0.068"
                  rgba="0.1 0.1 0.1 1"/>
                <camera name="wrist" pos="0.075 0 -0.062" fovy="{fovy:.6f}"
                  xyaxes="{_looking((0.075, 0, -0.062), (0.028, 0, -TOOL), up=(1, 0, 0))}"/>
                <site name="grip" pos="0 0 {-TOOL}" size="0.004" rgba="0 0 0 0"/>
                {finger('gripper', 1)}
                {finger('right_finger', -1)}
              </body>
            </body>
          </body>
        </body>
      </body>
    </body>"""


def _thing(i: int, thing: Thing) -> str:
    x, y, z = np.array(thing.size) / 2
    look = f'rgba="{_text(thing.rgb)} 1"'
    fixed = thing.shape in RECEPTACLES
    kind = 'class="table"' if fixed else 'class="thing"'
    match thing.shape:
        case 'cube':
            geoms = f'<geom {kind} type="box" size="{_text((x, y, z))}" {look}/>'
        case 'cylinder' | 'plate':
            geoms = f'<geom {kind} type="cylinder" size="{_text((x, z))}" {look}/>'
        case 'ball':
            geoms = f'<geom {kind} type="sphere" size="{x}" condim="6" {look}/>'
        case 'bin':
            wall, floor = WALL / 2, FLOORS['bin'] / 2
            boxes = (
                ((x, y, floor), (0, 0, floor - z)),
                ((wall, y, z), (x - wall, 0, 0)),
                ((wall, y, z), (wall - x, 0, 0)),
                ((x, wall, z), (0, y - wall, 0)),
                ((x, wall, z), (0, wall - y, 0)),
            )
            geoms = ''.join(
                f'<geom {kind} type="box" size="{_text(size)}" pos="{_text(pos)}" {look}/>'
                for size, pos in boxes
            )
    place = f'pos="{_text((*thing.position, thing.floor + z))}" euler="0 0 {thing.yaw:.9f}"'
    return f'<body name="thing {i}" {place}>{"" if fixed else "<freejoint/>"}{geoms}</body>\n    '


def _covers(count: int) -> str:
    x, _, z = np.array(COVER) / 2
    size, look = f'size="{_text((x, z))}"', f'rgba="{_text(COVER_RGB)} 1"'
    geom = f'<geom contype="0" conaffinity="4" type="cylinder" {size} {look}/>'
    return f'<body mocap="true" pos="{_text(PARKED)}">{geom}</body>\n    ' * count


def _looking(eye, target, up=(0.0, 0.0, 1.0)) -> str:
    """Return the xyaxes of a camera."""
    return _text(axes_towards(eye, target, up)[:, :2].T.ravel())


def _text(values) -> str:
    return ' '.join(f'{v:.9g}' for v in np.asarray(values, float))
