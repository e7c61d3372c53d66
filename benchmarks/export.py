"""Memory and time of `embodied_kv.data.export --contract` for a long bag of two cameras.

A bag with two cameras (640 x 480, JPEG, 30 Hz), joint states (100 Hz) and commands (30 Hz) is
written in two lengths, a quarter and the whole, and exported by a separate process. The table
shows the largest resident memory of each export, next to that of the imports alone. Disk: about 8
GB for the bag of an hour, and as much for its data set; both are removed.

Physics: the export reads a bag three times, so it takes no less than three times its bytes over
the bandwidth of the disk. Its memory is the imports, the signals of the last 30 s, one row group
of images (16 MiB, twice while it is written), 8 bytes for each number of a frame, and the index of
an MCAP file: about 1 KiB for each of its chunks.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from heapq import merge
from pathlib import Path

import cv2
import numpy as np
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

from benchmarks.common import report
from benchmarks.common.command import BenchmarkError, command

MOST = 300.0  # MiB that an export may take
QUICK, WHOLE = 20.0, 3600.0  # s
SECOND = 10**9
BEGIN = 1_700_000_000 * SECOND
RATES = {'camera': 30, 'joints': 100, 'command': 30}
JOINTS = [f'joint_{i}' for i in range(7)]
STORAGES = {'mcap': StoragePlugin.MCAP, 'sqlite3': StoragePlugin.SQLITE3}
KINDS = {
    '/left/compressed': 'sensor_msgs/msg/CompressedImage',
    '/right/compressed': 'sensor_msgs/msg/CompressedImage',
    '/joint_states': 'sensor_msgs/msg/JointState',
    '/arm/commands': 'std_msgs/msg/Float64MultiArray',
}
SELECTED = f'[{", ".join(f"position.{joint}" for joint in JOINTS)}]'
LIMITS = ''.join(f'  {j}: {{velocity: 1.0, acceleration: 5.0}}\n' for j in JOINTS)
CONTRACT = f"""
robot_type: two_cameras
fps: 30
observations:
  left: {{channel: {{topic: left/compressed, type: sensor_msgs/msg/CompressedImage}}}}
  right: {{channel: {{topic: right/compressed, type: sensor_msgs/msg/CompressedImage}}}}
  observation.state:
    - channel: {{topic: joint_states, type: sensor_msgs/msg/JointState}}
      select: {SELECTED}
      unit: rad
actions:
  action:
    - channel: {{topic: arm/commands, type: std_msgs/msg/Float64MultiArray}}
      select: {SELECTED}
      unit: rad
      relative: false
limits:
{LIMITS}"""
PEAK = "next(int(x.split()[1]) for x in open('/proc/self/status') if x.startswith('VmHWM'))"
IMPORTS = f'import embodied_kv.data.export; print({PEAK})'
EXPORT = f"""
import sys
from embodied_kv.data import export
sys.argv[0] = 'export'
export.main()
print({PEAK})
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument('--quick', action='store_true', help=f'{QUICK:g} s instead of an hour')
    parser.add_argument('--seconds', type=float, help='length of the longer bag')
    parser.add_argument('--storage', choices=tuple(STORAGES), default='mcap')


def picture() -> bytes:
    """Return a JPEG of about 40 KB: noise over a gradient."""
    noise = np.random.default_rng(0).integers(0, 24, (480, 640, 3))
    ramp = np.linspace(0, 220, 640)[None, :, None]
    pixels = (ramp + noise).astype(np.uint8)
    return cv2.imencode('.jpg', pixels, [cv2.IMWRITE_JPEG_QUALITY, 60])[1].tobytes()


def write_bag(root: Path, seconds: float, storage: str) -> int:
    """Write a bag and return its bytes. No two of its pictures are equal."""
    store, data = get_typestore(Stores.ROS2_JAZZY), picture()
    kinds = {name: store.types[name] for name in (*KINDS.values(), 'std_msgs/msg/Header')}
    time_, layout, dimension = (
        store.types[name]
        for name in (
            'builtin_interfaces/msg/Time',
            'std_msgs/msg/MultiArrayLayout',
            'std_msgs/msg/MultiArrayDimension',
        )
    )

    def header(at: int) -> object:
        sec, nanosec = divmod(at, SECOND)
        return kinds['std_msgs/msg/Header'](stamp=time_(sec, nanosec), frame_id='')

    def message(topic: str, number: int, at: int) -> object:
        kind, values = kinds[KINDS[topic]], 0.5 * np.sin(np.arange(7) + (at - BEGIN) / SECOND)
        if topic == '/joint_states':
            none = np.zeros(0)
            return kind(header(at), JOINTS, values, none, none)
        if topic == '/arm/commands':
            return kind(layout([dimension('', 7, 7)], 0), values)
        unlike = np.frombuffer(data + number.to_bytes(8, 'big'), np.uint8)
        return kind(header(at), 'jpeg', unlike)

    def moments(topic: str, rate: int) -> Iterator[tuple[int, str, int]]:
        return ((BEGIN + i * SECOND // rate, topic, i) for i in range(round(seconds * rate)))

    camera, joints, command_ = RATES.values()
    rates = dict(zip(KINDS, (camera, camera, joints, command_), strict=True))
    with Writer(root, version=9, storage_plugin=STORAGES[storage]) as writer:
        to = {t: writer.add_connection(t, kind, typestore=store) for t, kind in KINDS.items()}
        for at, topic, number in merge(*(moments(t, rate) for t, rate in rates.items())):
            serial = store.serialize_cdr(message(topic, number, at), KINDS[topic])
            writer.write(to[topic], at, serial)
    return sum(path.stat().st_size for path in root.iterdir())


def mebibytes(code: str, *arguments: str) -> tuple[float, float]:
    """Return the largest resident memory (MiB) and the seconds of a Python process."""
    began = time.perf_counter()
    ran = subprocess.run(
        [sys.executable, '-c', code, *arguments], capture_output=True, text=True, check=False
    )
    if ran.returncode:
        raise BenchmarkError((ran.stderr.strip().splitlines() or ['the export failed'])[-1])
    return int(ran.stdout.split()[-1]) / 1024, time.perf_counter() - began


def exported(seconds: float, storage: str) -> dict:
    """Return the figures of a bag's export."""
    report.OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=report.OUT, prefix='export_') as folder:
        root = Path(folder)
        (root / 'contract.yaml').write_text(CONTRACT)
        size = write_bag(root / 'bag', seconds, storage)
        options = ['--contract', str(root / 'contract.yaml'), '--task', 'reach']
        most, taken = mebibytes(EXPORT, *options, str(root / 'bag'), str(root / 'out'))
    return dict(bag_s=seconds, bag_mib=size / 2**20, peak_mib=most, export_s=taken)


def run(args: argparse.Namespace) -> dict:
    """Export both bags."""
    seconds = args.seconds or (QUICK if args.quick else WHOLE)
    imports, _ = mebibytes(IMPORTS)
    rows = [exported(length, args.storage) for length in (seconds / 4, seconds)]
    if not args.json:
        report.show(f'Export of two cameras, {args.storage}; imports: {imports:.0f} MiB', rows)
    return {
        'storage': args.storage,
        'imports_mib': imports,
        'exports': rows,
        'growth_mib': rows[1]['peak_mib'] - rows[0]['peak_mib'],
        'holds': rows[1]['peak_mib'] <= MOST,
        'most_mib': MOST,
    }


main = command('export', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
