"""One suite, `ros2 launch embodied_kv robot.launch.py`; with sim:=true a simulated robot too."""

from pathlib import Path

from ament_index_python.packages import get_package_share_directory
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue

from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity

CONFIG = Path(get_package_share_directory('embodied_kv')) / 'config' / 'robot.yaml'
ARGUMENTS = {
    'namespace': ('', 'Of all nodes and topics; two suites need two'),
    'params_file': (str(CONFIG), 'Parameters of the nodes'),
    'engine': (
        'own',
        'own, or remote: no model here, chunks come from the policy server `server`',
    ),
    'server': ('', 'Address of a policy server, ws://HOST:PORT; empty: as in params_file'),
    'sim': ('false', 'Start the simulated robot too: true or false'),
    'preset': ('', 'Model dimensions; empty: as in params_file'),
    'checkpoint': ('', 'Weights, or random; empty: as in params_file'),
    'use_sim_time': ('', 'Take the time from /clock: true or false; empty: as in params_file'),
    'autostart': (
        '',
        'Configure and activate the nodes at the start: true or false; empty: as in params_file',
    ),
    'log_level': ('info', 'debug, info, warn, error or fatal'),
}
UNUSED = {'own': 'server', 'remote': 'checkpoint'}  # by engine


def nodes(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    """The executables with the arguments of this launch."""
    given = context.launch_configurations
    flags = {
        name: given[name].lower() == 'true'
        for name in ('use_sim_time', 'autostart')
        if given[name]
    }
    chosen = {
        name: ParameterValue(given[name], value_type=str)
        for name in ('preset', 'checkpoint')
        if given[name]
    }
    if given['server']:
        chosen['server.address'] = ParameterValue(given['server'], value_type=str)
    common = {
        'package': 'embodied_kv',
        'namespace': given['namespace'],
        'arguments': ['--ros-args', '--log-level', given['log_level']],
        'output': 'screen',
    }
    if given['engine'] not in UNUSED:
        raise ValueError(f'engine is {given["engine"]!r}: write own or remote')
    lost = UNUSED[given['engine']]
    if given[lost]:
        raise ValueError(
            f'engine is {given["engine"]} and {lost} is given, which it does not use: '
            'server:=ws://… goes with engine:=remote, checkpoint:=… with engine:=own'
        )
    robot = Node(
        executable='remote_robot' if given['engine'] == 'remote' else 'robot',
        parameters=[given['params_file'], {**chosen, **flags}],
        **common,
    )
    if given['sim'].lower() != 'true':
        return [robot]
    clock = {'publish_clock': flags.get('use_sim_time', False)}
    return [
        robot,
        Node(executable='sim', parameters=[given['params_file'], clock], **common),
    ]


def generate_launch_description() -> LaunchDescription:
    """Arguments first."""
    return LaunchDescription(
        [
            *(
                DeclareLaunchArgument(name, default_value=default, description=text)
                for name, (default, text) in ARGUMENTS.items()
            ),
            OpaqueFunction(function=nodes),
        ]
    )
