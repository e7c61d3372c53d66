"""Start a fleet: one policy server, and for each robot its nodes and a command watchdog.

Run `ros2 launch embodied_kv fleet.launch.py`. Without `respawn`, the launch ends with the policy
server, and its exit status is 1 if the server or a `remote_robot` failed.
"""

from pathlib import Path

from ament_index_python.packages import get_package_share_directory
from launch.actions import (
    DeclareLaunchArgument,
    OpaqueFunction,
    RegisterEventHandler,
    Shutdown,
    TimerAction,
)
from launch.event_handlers import OnShutdown
from launch.events.process import ProcessExited
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue

from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity

CONFIG = Path(get_package_share_directory('embodied_kv')) / 'config' / 'fleet.yaml'
ARGUMENTS = {
    'robots': ('4', 'How many (robot_1, robot_2, ...), or their namespaces, separated by commas'),
    'clients': (
        'true',
        'Start the nodes of each robot here; false where they are started on other machines, with '
        'robot.launch.py engine:=remote',
    ),
    'port': ('', 'Port of the policy server on this machine; empty: as in params_file'),
    'sim': ('false', 'Start a simulated robot in each namespace: true or false'),
    'params_file': (str(CONFIG), 'Parameters of the nodes'),
    'preset': ('', 'Model dimensions; empty: as in params_file'),
    'checkpoint': ('', 'Weights, or random; empty: as in params_file'),
    'autostart': (
        '',
        'Configure and activate the nodes at the start: true or false; empty: as in params_file',
    ),
    'respawn': (
        'false',
        'Start a process again, after 2 s, when it ended: true or false. With false, the launch '
        'ends with the server',
    ),
    'log_level': ('info', 'debug, info, warn, error or fatal'),
}
RESPAWN_DELAY = 2.0  # s


def watchdog(respawn: bool, **arguments: object) -> Node:
    """Return the command watchdog; it ends with status 0 if the contract does not need it."""

    def ended(event: ProcessExited, context: LaunchContext) -> TimerAction | None:
        if respawn and event.returncode and not context.is_shutdown:
            again = watchdog(respawn, **arguments)
            return TimerAction(period=RESPAWN_DELAY, actions=[again])
        return None

    return Node(executable='command_watchdog', on_exit=ended, **arguments)


class Failures:
    """Records failed processes while the others go on; `ros2 launch` then has exit status 1."""

    def __init__(self) -> None:
        self._failed: list[str] = []

    def server_ended(self, event: ProcessExited, context: LaunchContext) -> Shutdown:
        """End the launch."""
        self.robot_ended(event, context)
        return Shutdown(reason=f'{event.process_name} ended')

    def robot_ended(self, event: ProcessExited, context: LaunchContext) -> None:
        """Record a failure."""
        if event.returncode and not context.is_shutdown:
            self._failed.append(f'{event.process_name} ended with status {event.returncode}')

    def report(self, event: object, context: LaunchContext) -> None:
        """Raise RuntimeError if one failed; `ros2 launch` then reports exit status 1."""
        if self._failed:
            raise RuntimeError('; '.join(self._failed))


def names(robots: str) -> list[str]:
    """Return the namespaces, from a number or from names."""
    if robots.isdigit():
        return [f'robot_{i + 1}' for i in range(int(robots))]
    return [name for name in (part.strip().strip('/') for part in robots.split(',')) if name]


def nodes(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    """Return the executables with the arguments of this launch."""
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
    params, respawn = given['params_file'], given['respawn'].lower() == 'true'
    robots, failures = names(given['robots']), Failures()
    again = {'respawn': True, 'respawn_delay': RESPAWN_DELAY}
    server = again if respawn else {'on_exit': failures.server_ended}
    client = again if respawn else {'on_exit': failures.robot_ended}
    asked, port = {k: chosen[k] for k in chosen if k != 'checkpoint'}, []
    if given['port']:
        # After params_file and by the node's name, because the node's section has priority.
        port = ['-p', f'policy_server:port:={int(given["port"])}']
        address = f'ws://127.0.0.1:{given["port"]}'
        asked['server.address'] = ParameterValue(address, value_type=str)
    started = [
        RegisterEventHandler(OnShutdown(on_shutdown=failures.report)),
        Node(
            executable='policy_server',
            parameters=[chosen],
            **server,
            **common | {'arguments': [*common['arguments'], '--params-file', params, *port]},
        ),
    ]
    for seed, robot in enumerate(robots):
        own = {**common, 'namespace': robot}
        if given['clients'].lower() == 'true':
            parameters = [params, asked]
            started.append(Node(executable='remote_robot', parameters=parameters, **client, **own))
            started.append(watchdog(respawn, parameters=parameters, **own))
        if given['sim'].lower() == 'true':
            parameters = [params, {'seed': seed}]
            started.append(Node(executable='sim', name='sim', parameters=parameters, **own))
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
