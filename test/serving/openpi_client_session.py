"""A session of openpi's unmodified client, run by tools/openpi_client in its own process.

Arguments: PORT ROBOT. It prints what the client received as JSON, and does not import this
package.
"""

import json
import sys
import time

import numpy as np
from openpi_client import image_tools
from openpi_client.action_chunk_broker import ActionChunkBroker
from openpi_client.websocket_client_policy import WebsocketClientPolicy

TIMES = 100


def picture(random):
    whole = random.integers(0, 256, (48, 64, 3), dtype=np.uint8)
    return image_tools.convert_to_uint8(image_tools.resize_with_pad(whole, 28, 28))


def franka(random):
    """Return a request as in openpi's examples/droid."""
    return {
        'observation/exterior_image_1_left': picture(random),
        'observation/wrist_image_left': picture(random),
        'observation/joint_position': random.uniform(-1, 1, 7),
        'observation/gripper_position': random.uniform(0, 1, 1),
        'prompt': 'pick up the marker',
    }


def libero(random):
    """Return a request as in openpi's examples/libero."""
    return {
        'observation/image': picture(random),
        'observation/wrist_image': picture(random),
        'observation/state': np.concatenate([random.uniform(-1, 1, 6), random.uniform(0, 1, 2)]),
        'prompt': 'put the bowl on the plate',
    }


def aloha(random):
    """Return a request as in openpi's examples/aloha_real."""
    cameras = 'cam_high', 'cam_low', 'cam_left_wrist', 'cam_right_wrist'
    return {
        'state': random.uniform(-1, 1, 14),
        'images': {camera: picture(random).transpose(2, 0, 1) for camera in cameras},
        'prompt': 'fold the towel',
    }


def connected(port):
    """Return a connected client; try again if a busy machine exceeds 10 s for the handshake."""
    for _ in range(20):
        try:
            return WebsocketClientPolicy('127.0.0.1', port)
        except (OSError, TimeoutError):
            time.sleep(1.0)
    raise SystemExit('no handshake')


def main(port, robot):
    ask, random, saw = globals()[robot], np.random.default_rng(0), {}
    client = connected(port)
    saw['metadata'] = client.get_server_metadata()
    replies = [client.infer(ask(random)) for _ in range(TIMES)]
    saw['shapes'] = sorted({reply['actions'].shape for reply in replies})
    saw['dtypes'] = sorted({str(reply['actions'].dtype) for reply in replies})
    saw['finite'] = all(bool(np.isfinite(reply['actions']).all()) for reply in replies)
    saw['keys'] = sorted(set().union(*replies))
    client.reset()
    saw['after reset'] = client.infer(ask(random))['actions'].shape
    broker = ActionChunkBroker(client, action_horizon=5)
    saw['of the broker'] = sorted({broker.infer(ask(random))['actions'].shape for _ in range(11)})
    broker.reset()
    try:
        client.infer({'prompt': 'x'})
    except RuntimeError as error:
        saw['error'] = str(error)
    print(json.dumps(saw))


if __name__ == '__main__':
    main(int(sys.argv[1]), sys.argv[2])
