"""A node without an engine that observes given inputs and records each moment."""

import itertools
from types import SimpleNamespace

from sensor_msgs.msg import CompressedImage, JointState

from embodied_kv.config import TINY
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.nodes.observation.inputs import ObservationInputs, ObservationParams
from embodied_kv.nodes.observation.joint_merger import JointInput
from embodied_kv.robots.channels import COMPRESSED, IMAGE
from embodied_kv.robots.sources import View

ARM = JointInput('joint_states', ('hip', 'knee'))


def view(name, **options):
    """Return a view by name; its camera publishes raw images, or `compressed` ones."""
    kind = 'compressed' if options.pop('compressed', False) else 'image'
    channel = {'topic': f'camera/{name}/{kind}', 'type': IMAGE if kind == 'image' else COMPRESSED}
    return {name: View(channel=channel, **{'required': False} | options)}


def description(*views, joints=(ARM,)):
    named: dict[str, View] = {}
    for one in views or (view('front'),):
        named |= one
    return named, tuple(joints)


class Recorder(ObservationInputs):
    """Observation inputs that append each synchronized moment to `moments`."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.moments = []

    def on_image(self):
        moment = self._sync.newest(self.now())
        if moment is not None:
            self.moments.append(moment)


def observer(inputs):
    """Return the class of a node that observes `inputs` and records instructions in `told`."""

    class Observer(SuiteNode):
        on_engine = False

        def __init__(self, **arguments):
            super().__init__('observer', ObservationParams, **arguments)

        def find_host(self):
            return SimpleNamespace(model=self.embodiment.adapted(TINY))

        def setup(self):
            self.told = []
            self.inputs = Recorder(self, *inputs, self.told.append)

        def start(self):
            self.inputs.restart()

    return Observer


def compressed(robot, name='front'):
    """Return a function that publishes bytes as a compressed image."""
    topic = f'camera/{name}/compressed'
    publisher = robot.node.create_publisher(CompressedImage, topic, qos.SENSOR)

    def publish(data, stamp=None, format='jpeg'):
        message = CompressedImage(format=format, data=data)
        publisher.publish(robot.stamped(message, stamp))

    return publish


def joints(robot, topic='joint_states'):
    """Return a function that publishes joint positions by name."""
    publisher = robot.node.create_publisher(JointState, topic, qos.JOINTS)

    def publish(stamp=None, **positions):
        message = JointState(name=list(positions), position=list(positions.values()))
        publisher.publish(robot.stamped(message, stamp))

    return publish


def until_moment(robot, node, show):
    """Call `show` until the node has one more moment; return it."""
    before = len(node.inputs.moments)
    for _ in itertools.repeat(None, 200):
        show()
        robot.spin(0.02)
        if len(node.inputs.moments) > before:
            return node.inputs.moments[-1]
    raise AssertionError(f'there was none: {node.inputs.waits}')
