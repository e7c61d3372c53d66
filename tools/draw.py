"""Render a ball with MuJoCo, to test the renderer that MUJOCO_GL names.

Fails if the renderer does not work.
"""

import mujoco

BALL = '<mujoco><worldbody><light pos="0 0 3"/><geom size="0.3"/></worldbody></mujoco>'

model = mujoco.MjModel.from_xml_string(BALL)
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
with mujoco.Renderer(model, height=32, width=32) as renderer:
    renderer.update_scene(data)
    if not renderer.render().any():
        raise SystemExit('the image is black')
