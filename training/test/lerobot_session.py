"""Write or read a data set by the package lerobot: `tools/with lerobot python FILE COMMAND ROOT`.

`write` writes two episodes with LeRobot's defaults, so images become AV1 videos. `read` prints
what LeRobot reads of each frame: state, action, task, timestamp and the mean of each image.

LeRobot imports torchvision, whose compiled operators need the CUDA build of torch. No operator is
used; their declarations are stand-ins, without which the import fails.
"""

import json
import sys

import numpy as np
import torch

declared = torch.library.Library('torchvision', 'DEF')
for operator in ('nms', 'qnms'):
    declared.define(f'{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')

from lerobot.datasets.lerobot_dataset import LeRobotDataset  # noqa: E402

STATE = [f'position.{joint}' for joint in ('slide', 'lift', 'turn', 'jaw')] + ['velocity.slide']
VIEWS = {'top': (48, 64, 3), 'side': (32, 40, 3)}
LENGTHS = 12, 9
FPS = 20


def write(root):
    numbers = {
        'observation.state': {'dtype': 'float32', 'shape': (5,), 'names': STATE},
        'action': {'dtype': 'float32', 'shape': (4,), 'names': STATE[:4]},
    }
    images = {
        f'observation.images.{view}': {
            'dtype': 'video',
            'shape': shape,
            'names': ['height', 'width', 'channels'],
        }
        for view, shape in VIEWS.items()
    }
    made = LeRobotDataset.create(
        'user/gantry', fps=FPS, features=numbers | images, root=root, robot_type='gantry'
    )
    for episode, length in enumerate(LENGTHS):
        for frame in range(length):
            level = 20 + 15 * frame
            made.add_frame(
                {
                    'observation.state': np.arange(5, dtype=np.float32) + 10 * frame,
                    'action': np.arange(4, dtype=np.float32) + 10 * frame + episode,
                    'task': f'task {episode}',
                    **{
                        f'observation.images.{view}': np.full(shape, level, np.uint8)
                        for view, shape in VIEWS.items()
                    },
                }
            )
        made.save_episode()
    made.finalize()


def read(root):
    data = LeRobotDataset('user/gantry', root=root)
    for index in range(len(data)):
        frame = data[index]
        print(
            json.dumps(
                {
                    'episode': int(frame['episode_index']),
                    'state': frame['observation.state'].tolist(),
                    'action': frame['action'].tolist(),
                    'task': frame['task'],
                    'timestamp': float(frame['timestamp']),
                    'images': {
                        name.rpartition('.')[2]: [list(value.shape), float(value.mean() * 255)]
                        for name, value in frame.items()
                        if name.startswith('observation.images.')
                    },
                }
            )
        )


if __name__ == '__main__':
    {'write': write, 'read': read}[sys.argv[1]](sys.argv[2])
