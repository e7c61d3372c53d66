"""A question whose frame the policy server refuses ends at once, with the server's reason."""

from remote_suite import PATIENCE, PlainServer

from embodied_kv.nodes.remote.language import RemoteLanguage
from embodied_kv.serving.websocket.extensions import Extensions
from embodied_kv.srv import Ask


def test_a_question_ends_with_the_reason_of_the_refusal(robot):
    def answer(request):
        return {'refused': 'state has NaN', 'request_id': request['request_id']}

    ours = Extensions(50, 7, 0.1, True, True, True, 2, refusals=True).metadata
    calm = {'camera_timeout': 60.0, 'max_image_age': 600.0, 'server__reply_timeout': PATIENCE}
    with PlainServer(answer, ours) as server:
        node, said = robot.up(RemoteLanguage, server__address=server.address, **calm), []
        node.warn_throttled = lambda key, line: said.append(line)
        robot.until(lambda: node._server.policy.is_connected and node._frames.newest() is not None)
        robot.show()
        stream = robot.call(Ask, 'language/ask', question='what is there?').stream
        robot.until(lambda: robot.texts)
        assert (robot.texts[0].stream, robot.texts[0].reason) == (stream, 'error')
        assert 'the server refused it: state has NaN' in said[0] and len(server.asked) == 1
