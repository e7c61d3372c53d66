"""Small data sets of the gantry in LeRobot's layouts, and changes as other writers make them."""

import ctypes
import json
import threading
from contextlib import contextmanager
from fractions import Fraction

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from robot_cases import ROBOT, png

from embodied_kv.data.lerobot_layout import DATA, EPISODES, INFO
from embodied_kv.data.lerobot_writer import Frames, LeRobotWriter

FILE = DATA.format(chunk_index=0, file_index=0)
META = EPISODES.format(chunk_index=0, file_index=0)
TOP, SIDE = 'observation.images.top', 'observation.images.side'
LENGTHS = 5, 7
FPS = 20


def level(frame):
    """Return the grey level of a frame, whose number counts through all episodes."""
    return 20 + 15 * (frame % 13)


def pixels(frame, size=(48, 64), channels=3):
    return np.full((*size, channels), level(frame), np.uint8)


def write(root, kind=LeRobotWriter, channels=3):
    """Write two episodes; the state counts frames and numbers. channels: of the images of top."""
    writer, begin = kind(root, ROBOT), 0
    for number, length in enumerate(LENGTHS):
        frames = range(begin, begin + length)
        counted = np.array(frames)[:, None] * 10.0
        images = [pixels(frame) for frame in frames]
        grey = [image[..., 0] if channels == 1 else image for image in images]
        views = {'top': [png(p) for p in grey], 'side': [png(p) for p in images]}
        writer.add(
            Frames(
                task=f'task {number}',
                state=counted + np.arange(5),
                action=counted + np.arange(4),
                interventions=np.zeros(length, bool),
                images=views,
            )
        )
        begin += length
    writer.finish()
    return writer.root


def change_info(root, change):
    info = json.loads((root / INFO).read_text())
    change(info)
    (root / INFO).write_text(json.dumps(info))


def rename(root, names):
    """Rename columns of a data set of version 3.0."""
    table = pq.read_table(root / FILE)
    new = [names.get(name, name) for name in table.column_names]
    pq.write_table(table.rename_columns(new), root / FILE)

    def renamed(info):
        info['features'] = {names.get(k, k): f for k, f in info['features'].items()}

    change_info(root, renamed)


LIBC = ctypes.CDLL(None)


@contextmanager
def usual_scheduling():
    """Restore the scheduling of this thread.

    SVT-AV1 calls pthread_setschedparam to give the thread that opens it SCHED_FIFO 99, if that is
    permitted. All threads and processes that this thread starts later inherit it and starve every
    other process. Threads of Fast DDS inherit it from the record of this thread in the C library,
    which os.sched_setscheduler does not change.
    """
    before = scheduling()
    try:
        yield
    finally:
        policy, priority = before
        number = ctypes.byref(ctypes.c_int(priority))
        LIBC.pthread_setschedparam(ctypes.c_ulong(threading.get_ident()), policy, number)


def scheduling():
    """Return policy and priority of this thread in the record of the C library."""
    policy, priority = ctypes.c_int(), ctypes.c_int()
    this = ctypes.c_ulong(threading.get_ident())
    LIBC.pthread_getschedparam(this, ctypes.byref(policy), ctypes.byref(priority))
    return policy.value, priority.value


def encode(path, count, codec='libx264', fps=FPS, late=0.0, **options):
    """Write a video whose frames have the levels of a data set. late: time of its first frame."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with usual_scheduling(), av.open(str(path), 'w') as video:
        stream = video.add_stream(codec, rate=fps, options={k: str(v) for k, v in options.items()})
        stream.width, stream.height, stream.pix_fmt = 64, 48, 'yuv420p'
        stream.codec_context.time_base = Fraction(1, 1000 * fps)
        for i in range(count):
            frame = av.VideoFrame.from_ndarray(pixels(i), 'rgb24')
            frame.pts, frame.time_base = (
                round((i / fps + late) * 1000 * fps),
                Fraction(1, 1000 * fps),
            )
            video.mux(stream.encode(frame))
        video.mux(stream.encode(None))
    return path


def to_video(root, starts=None, column=TOP, **how):
    """Replace the images of a column by a video of all episodes, as LeRobot stores it."""
    path = root / f'videos/{column}/chunk-000/file-000.mp4'
    encode(path, sum(LENGTHS), **how)
    pq.write_table(pq.read_table(root / FILE).drop_columns([column]), root / FILE)
    table = pq.read_table(root / META)
    starts = starts or [0.0, LENGTHS[0] / FPS]
    for name, values in (
        ('chunk_index', [0, 0]),
        ('file_index', [0, 0]),
        ('from_timestamp', starts),
    ):
        table = table.append_column(f'videos/{column}/{name}', pa.array(values))
    pq.write_table(table, root / META)

    def described(info):
        info['features'][column] |= {'dtype': 'video', 'info': {'video.codec': 'h264'}}
        info['video_path'] = 'videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4'

    change_info(root, described)
    return path
