"""Draws a sheet of tabletop scenes: `python -m embodied_kv.demo.sim.contact_sheet --out FILE.png`.

Knows the tabletop and a file. Nobody imports it.
"""

from __future__ import annotations

import argparse

import cv2
import numpy as np

from embodied_kv.demo.sim import kinematics
from embodied_kv.demo.sim.tabletop import SceneConfig, Tabletop, joint_limits


def contact_sheet(seeds: range, size: int = 320) -> np.ndarray:
    """uint8 [rows, columns, 3]: a row a seed, each camera large, then its 64 x 64 pixels."""

    def views(seed: int, image_size: int) -> list[np.ndarray]:
        with Tabletop(SceneConfig(image_size=image_size), seed) as table:
            target = kinematics.top_down(table.objects()[-1].position + (0, 0, 0.08))[0]
            table.command(np.append(target, joint_limits()[1][-1]))
            table.step(1.0)
            return list(table.render().values())

    def enlarged(image: np.ndarray) -> np.ndarray:
        index = np.arange(size) * len(image) // size
        return image[index][:, index]

    return np.vstack(
        [np.hstack([enlarged(v) for n in (size, 64) for v in views(seed, n)]) for seed in seeds]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description='Draw a sheet of tabletop scenes.')
    parser.add_argument('--out', required=True, help='PNG file to write')
    parser.add_argument('--seeds', type=int, default=4, help='how many scenes, from seed 0')
    arguments = parser.parse_args()
    if not cv2.imwrite(arguments.out, contact_sheet(range(arguments.seeds))[..., ::-1]):
        raise SystemExit(f'cannot write {arguments.out}')


if __name__ == '__main__':
    main()
