"""`python -m embodied_kv COMMAND`: commands that do not need ROS 2."""

from __future__ import annotations

import argparse

from embodied_kv.demo import try_policy


def main() -> None:
    parser = argparse.ArgumentParser(prog='python -m embodied_kv', description=__doc__)
    commands = parser.add_subparsers(title='commands', required=True)
    text = 'one chunk of actions and one sentence for a picture, with the path drawn into it'
    command = commands.add_parser('try', help=text, description=text)
    try_policy.add_arguments(command)
    command.set_defaults(run=try_policy.main)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == '__main__':
    main()
