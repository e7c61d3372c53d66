"""A fleet, `ros2 launch embodied_kv fleet.launch.py`: one engine for many robots."""

from pathlib import Path

from ament_index_python.packages import get_package_share_directory
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue

from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity

CONFIG = Path(get_package_share_directory('embodied_kv')) / 'config' / 'fleet.yaml'
ARGUMENTS = {
    'robots': ('4', 'How many (robot_1, robot_2, ...), or their namespaces, separated by commas'),
    'clients': (
        'true',
        'Start the node that asks for each robot; false where robots bring theirs',
    ),
    'sim': ('false', 'Start a simulated robot in each namespace: true or false'),
    'params_file': (str(CONFIG), 'Parameters of the nodes'),
    'preset': ('', 'Model dimensions; empty: as in params_file'),
    'checkpoint': ('', 'Weights, or random; empty: as in params_file'),
    'autostart': (
        '',
        'Configure and activate the nodes at the start: true or false; empty: as in params_file',
    ),
    'log_level': ('info', 'debug, info, warn, error or fatal'),
}


def names(robots: str) -> list[str]:
    """Namespaces, of a number or of names."""
    if robots.isdigit():
        return [f'robot_{i + 1}' for i in range(int(robots))]
    return [name for name in (part.strip().strip('/') for part in robots.split(',')) if name]


def nodes(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    """The executables with the arguments of this launch."""
    given = context.launch_configurations
    chosen = {
        name: ParameterValue(given[name], value_type=str)
        for name in ('preset', 'checkpoint')
        if given[name]
    }
    if given['autostart']:
        chosen['autostart'] = given['autostart'].lower() == 'true'
    common = {
        'package': 'embodied_kv',
        'arguments': ['--ros-args', '--log-level', given['log_level']],
        'output': 'screen',
    }
    params = given['params_file']
    robots = names(given['robots'])
    served = {'robots': ParameterValue(','.join(robots), value_type=str)}
    started = [Node(executable='fleet', parameters=[params, {**chosen, **served}], **common)]
    for seed, robot in enumerate(robots):
        common['namespace'] = robot
        if given['clients'].lower() == 'true':
            started.append(Node(executable='fleet_client', parameters=[params, chosen], **common))
        if given['sim'].lower() == 'true':
            started.append(Node(executable='sim', parameters=[params, {'seed': seed}], **common))
    return started


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
