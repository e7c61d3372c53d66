"""Start one robot: its suite, its command watchdog, and with sim:=true a simulated robot.

Run `ros2 launch embodied_kv robot.launch.py`. Without `respawn`, the launch ends with the suite,
and its exit status is 1 if the suite failed.
"""

from pathlib import Path

from ament_index_python.packages import get_package_share_directory
from launch.actions import DeclareLaunchArgument, OpaqueFunction, Shutdown, TimerAction
from launch.events.process import ProcessExited
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
    'contract': (
        '',
        'Contract of the robot: name of a shipped one, or a YAML file; empty: as in params_file',
    ),
    'sim': ('false', 'Start the simulated robot too: true or false'),
    'preset': ('', 'Model dimensions; empty: as in params_file'),
    'checkpoint': ('', 'Weights, or random; empty: as in params_file'),
    'use_sim_time': ('', 'Take the time from /clock: true or false; empty: as in params_file'),
    'autostart': (
        '',
        'Configure and activate the nodes at the start: true or false; empty: as in params_file',
    ),
    'respawn': (
        'false',
        'Start a process again, after 2 s, when it ended: true or false. With false, the launch '
        'ends with the suite',
    ),
    'log_level': ('info', 'debug, info, warn, error or fatal'),
}
RESPAWN_DELAY = 2.0  # s
UNUSED = {'own': 'server', 'remote': 'checkpoint'}  # by engine: the argument without effect


def suite_ended(event: ProcessExited, context: LaunchContext) -> Shutdown:
    """End the launch. Raises RuntimeError, which `ros2 launch` reports as exit status 1."""
    if event.returncode and not context.is_shutdown:
        raise RuntimeError(f'{event.process_name} ended with exit status {event.returncode}')
    return Shutdown(reason=f'{event.process_name} ended')


def watchdog(respawn: bool, **arguments: object) -> Node:
    """Return the command watchdog; it ends with status 0 if the contract does not need it."""

    def ended(event: ProcessExited, context: LaunchContext) -> TimerAction | None:
        if respawn and event.returncode and not context.is_shutdown:
            again = watchdog(respawn, **arguments)
            return TimerAction(period=RESPAWN_DELAY, actions=[again])
        return None

    return Node(executable='command_watchdog', on_exit=ended, **arguments)


def nodes(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    """Return the executables with the arguments of this launch."""
    given = context.launch_configurations
    flags = {
        name: given[name].lower() == 'true'
        for name in ('use_sim_time', 'autostart')
        if given[name]
    }
    chosen = {
        name: ParameterValue(given[name], value_type=str)
        for name in ('contract', 'preset', 'checkpoint')
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
    params, respawn = given['params_file'], given['respawn'].lower() == 'true'
    again = {'respawn': True, 'respawn_delay': RESPAWN_DELAY}
    started = [
        Node(
            executable='remote_robot' if given['engine'] == 'remote' else 'robot',
            parameters=[params, {**chosen, **flags}],
            **(again if respawn else {'on_exit': suite_ended}),
            **common,
        ),
        watchdog(respawn, parameters=[params, {**chosen, **flags}], **common),
    ]
    if given['sim'].lower() == 'true':
        clock = {'publish_clock': flags['use_sim_time']} if 'use_sim_time' in flags else {}
        # By the node's name, because the node's section of params_file has priority.
        started.append(Node(executable='sim', name='sim', parameters=[params, clock], **common))
    return started


def generate_launch_description() -> LaunchDescription:
    """Return the arguments, then the nodes."""
    return LaunchDescription(
        [
            *(
                DeclareLaunchArgument(name, default_value=default, description=text)
                for name, (default, text) in ARGUMENTS.items()
            ),
            OpaqueFunction(function=nodes),
        ]
    )
