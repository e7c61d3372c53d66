"""Build msg/, srv/ and action/ from setup.py: one ament_python package of Python and interfaces.

This module knows setuptools' install and develop commands and CMake, not the content of the
interfaces. The CMake project is written into the build folder and installed into the same prefix
as the Python package; `extend_path` in embodied_kv/__init__.py joins the two at run time. Works
with `colcon build` and `colcon build --symlink-install`.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools.command.develop import develop
from setuptools.command.install import install

ROOT = Path(__file__).resolve().parent.parent
CMAKE = """\
cmake_minimum_required(VERSION 3.16)
project({name})
find_package(ament_cmake REQUIRED)
find_package(rosidl_default_generators REQUIRED)
find_package(action_msgs REQUIRED)
find_package(std_msgs REQUIRED)
find_package(sensor_msgs REQUIRED)
rosidl_generate_interfaces({name}
  {interfaces}
  DEPENDENCIES action_msgs std_msgs sensor_msgs)
# Generated files spend their time on the same headers: they compile in groups, which takes half
# the time. Those of generator_c define the same names twice and stay alone.
foreach(part {parts})
  set_target_properties({name}__rosidl_${{part}} PROPERTIES
    UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE {batch})
endforeach()
ament_export_dependencies(rosidl_default_runtime)
ament_package()
"""

GROUPED = [
    *(
        f'typesupport_{kind}{language}'
        for kind in ('', 'introspection_', 'fastrtps_')
        for language in ('c', 'cpp')
    ),
    'generator_py',
]
BATCH = 20  # files of a group, so that each of two cores has a group


def build_interfaces(name: str, prefix: Path, build: Path) -> None:
    """Generate and compile msg/, srv/ and action/ in `build`, install them into `prefix`.

    Raises SystemExit if no ROS 2 is sourced, CalledProcessError if CMake fails.
    """
    if not os.environ.get('AMENT_PREFIX_PATH'):
        sys.exit('no ROS 2 here: source one, or run `make setup`, which brings its own')
    site_packages = Path('lib', f'python3.{sys.version_info.minor}', 'site-packages')
    source = build / 'source'
    source.mkdir(parents=True, exist_ok=True)
    (build / 'CMakeCache.txt').unlink(missing_ok=True)  # may name the ROS 2 of another build
    paths = [path for kind in ('msg', 'srv', 'action') for path in ROOT.glob(f'{kind}/*.{kind}')]
    interfaces = '\n  '.join(f'"{ROOT}:{path.relative_to(ROOT)}"' for path in sorted(paths))
    (source / 'CMakeLists.txt').write_text(
        CMAKE.format(name=name, interfaces=interfaces, parts=' '.join(GROUPED), batch=BATCH)
    )
    shutil.copy(ROOT / 'package.xml', source)
    environment = dict(os.environ, PYTHONPATH=_without_colcon(os.environ.get('PYTHONPATH', '')))
    for step in (
        [
            *('-S', source, '-B', build, f'-DCMAKE_INSTALL_PREFIX={prefix}'),
            f'-DPYTHON_INSTALL_DIR={site_packages}',
            f'-DPython3_EXECUTABLE={sys.executable}',
            # Generated code copies fields: more optimization takes twice as long to compile.
            *('-DCMAKE_BUILD_TYPE=Release', '-DBUILD_TESTING=OFF', '-Wno-dev'),
            *(f'-DCMAKE_{language}_FLAGS_RELEASE=-O1 -DNDEBUG' for language in ('C', 'CXX')),
        ],
        ['--build', build, '--parallel', str(os.cpu_count())],
        ['--install', build],
    ):
        subprocess.run(['cmake', *map(str, step)], check=True, env=environment)
    # The generator installs an empty package of this name, which would win over ours.
    (prefix / site_packages / name / '__init__.py').unlink(missing_ok=True)
    for metadata in (prefix / site_packages).glob(f'{name}-*.egg-info'):
        shutil.rmtree(metadata)


def _without_colcon(path: str) -> str:
    """Return PYTHONPATH without the folder in which colcon overrides sys.prefix for setuptools."""
    return os.pathsep.join(p for p in path.split(os.pathsep) if Path(p).name != 'prefix_override')


class InstallWithInterfaces(install):
    """Install command of `colcon build`."""

    def run(self) -> None:
        """Build the interfaces first: the package's own files then replace the generated ones."""
        build = Path(self.get_finalized_command('build').build_base, 'interfaces').resolve()
        base = Path(self.install_base)
        prefix = Path(self.root, base.relative_to(base.anchor)) if self.root else base
        build_interfaces(self.distribution.get_name(), prefix, build)
        super().run()


class DevelopWithInterfaces(develop):
    """Develop command of `colcon build --symlink-install`."""

    def run(self) -> None:
        """Build the interfaces, then install; an uninstall keeps the interfaces."""
        if not self.uninstall:
            build = Path(self.get_finalized_command('build').build_base, 'interfaces').resolve()
            build_interfaces(self.distribution.get_name(), Path(sys.prefix), build)
        super().run()


COMMANDS = {'install': InstallWithInterfaces, 'develop': DevelopWithInterfaces}
