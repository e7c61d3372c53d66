"""A robot without a model runs a mission.

Its policy server answers scene queries, plans, and stores checkpoints.
"""

from rclpy.action import ActionClient
from remote_suite import PATIENCE, running_server
from test_a_robot_without_a_model_remembers import kept

from embodied_kv.action import Mission
from embodied_kv.errors import ErrorCode
from embodied_kv.msg import MissionState
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.remote.action import RemoteAction
from embodied_kv.nodes.remote.language import RemoteLanguage
from embodied_kv.nodes.remote.robot import RemoteMemory, RemoteMission, RemoteSession

SUITE = RemoteAction, RemoteLanguage, RemoteSession, RemoteMemory, RemoteMission


def test_it_looks_and_plans_by_the_server_until_it_is_cancelled(robot, tmp_path):
    with running_server('tabletop', engine={'streams': 8}, memory=kept(tmp_path)) as opened:
        asked, ask, plans, call = [], opened.sessions.ask, [], opened.memories.call
        opened.sessions.ask = lambda session, question, *more: (
            asked.append(question) or ask(session, question, *more)
        )
        opened.memories.call = lambda name, verb, given: (
            plans.append(verb) or call(name, verb, given)
        )
        robot.up(
            *SUITE,
            server__address=f'ws://127.0.0.1:{opened.port}',
            server__reply_timeout=PATIENCE,
            preset='tiny',
            prompt_interval_frames=0,
            world_step_seconds=0.0,
            precompute=False,
            capsule_directory=str(tmp_path / 'capsules'),
            camera_timeout=60.0,
            max_image_age=600.0,
        )
        states = []
        robot.node.create_subscription(MissionState, 'mission/state', states.append, qos.STATUS)
        client = ActionClient(robot.node, Mission, 'mission')
        robot.until(client.server_is_ready)
        sent = client.send_goal_async(Mission.Goal(mission='put the red cube into the bin'))
        robot.until(sent.done)
        assert sent.result().accepted
        over = sent.result().get_result_async()
        robot.until(lambda: over.done() or 'plan' in plans)
        assert asked and 'query' in plans
        if not over.done():
            sent.result().cancel_goal_async()
        robot.until(over.done)
        result = over.result().result
        assert not result.success and result.error_code != ErrorCode.UNAVAILABLE, result.message
