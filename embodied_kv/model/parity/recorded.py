"""A recorded case: a checkpoint folder with raw observations and what its project made of them.

Knows case.json and case.safetensors, and facts.json, where a case of openpi's says what its code
says of the robot: that becomes the contract's part. Does not know the tolerances.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embodied_kv.config import PI05, BackboneConfig, ExpertConfig, ModelConfig, VisionConfig
from embodied_kv.model.checkpoints.checkpoint import Checkpoint
from embodied_kv.model.checkpoints.facts import read_json
from embodied_kv.model.checkpoints.open import open_checkpoint
from embodied_kv.model.weights import CheckpointError, Weights
from embodied_kv.robots.contract import Declared

ABOUT, TENSORS, FACTS = 'case.json', 'case.safetensors', 'facts.json'
TIMELESS = 1.0  # 1/s: a case says no rate, and nothing that it records depends on it
# What each robot's transform calls its cameras -> the slots that it puts them into.
OPENPI_CAMERAS = {
    'LiberoInputs': {
        'observation/image': 'base_0_rgb',
        'observation/wrist_image': 'left_wrist_0_rgb',
    },
    'DroidInputs': {
        'observation/exterior_image_1_left': 'base_0_rgb',
        'observation/wrist_image_left': 'left_wrist_0_rgb',
    },
    'AlohaInputs': {
        'cam_high': 'base_0_rgb',
        'cam_left_wrist': 'left_wrist_0_rgb',
        'cam_right_wrist': 'right_wrist_0_rgb',
    },
}
# Transforms that every pi0.5 of openpi has, and those whose fields are read here.
OPENPI_KNOWN = {
    *OPENPI_CAMERAS,
    *('InjectDefaultPrompt', 'DeltaActions', 'Normalize', 'ResizeImages', 'TokenizePrompt'),
    'PadStatesAndActions',
}


def is_case(path: str | Path) -> bool:
    """Whether a path is the folder of one."""
    return (Path(path) / ABOUT).is_file()


class Case:
    """checkpoint: the folder's. records: by name, what case.json says of each observation.

    Raises CheckpointError where a part is missing, or the folder is not one that can be opened.
    """

    def __init__(self, folder: str | Path) -> None:
        folder = Path(folder)
        self.about = read_json(folder / ABOUT)
        self.records: dict[str, dict] = self.about['records']
        self._tensors = Weights(folder / TENSORS)
        self._cameras, declared, self._prompt = None, Declared(fps=TIMELESS), None
        if (folder / FACTS).is_file():
            facts = read_json(folder / FACTS)
            self._cameras, declared = openpi_facts(facts)
            self._prompt = facts.get('default_prompt')
        self.checkpoint: Checkpoint = open_checkpoint(folder, declared, widths(self.about['dims']))
        self._cameras = self._cameras or {view: view for view in self.checkpoint.slots}

    def images(self, record: str) -> tuple[NDArray[np.uint8] | None, ...]:
        """uint8 [H, W, 3] or None, in the order of the checkpoint's views."""
        absent = self.records[record]['cameras_not_given']
        given = {self._cameras[camera]: camera for camera in self._cameras if camera not in absent}
        return tuple(self._picture(given.get(view)) for view in self.checkpoint.config.views)

    def state(self, record: str) -> NDArray[np.float64]:
        return self._tensors.read(f'{record}.raw.state').numpy()

    def instruction(self, record: str) -> str:
        about = self.records[record]
        return about.get('task') or about.get('prompt_given') or self._prompt or ''

    def noise(self) -> Tensor:
        """float32 [1, chunk, padded]."""
        return self._tensors.read('noise')

    def expected(self, record: str) -> list[str]:
        """Names of the quantities that were recorded."""
        head = f'{record}.expected.'
        names = (name for name in self._tensors.names if name.startswith(head))
        return sorted(name.removeprefix(head) for name in names)

    def read(self, record: str, name: str) -> Tensor:
        return self._tensors.read(f'{record}.expected.{name}')

    def seen_slots(self, record: str) -> list[tuple[str, bool]]:
        """Every view of the network, in the order of this record, and whether it has a picture.

        LeRobot moves those without one to the end; openpi leaves each in its slot.
        """
        seen = dict(zip(self.checkpoint.config.views, self.images(record), strict=True))
        slots = [(slot, seen.get(slot) is not None) for slot in self.checkpoint.slots]
        if self.checkpoint.kind == 'lerobot':
            slots.sort(key=lambda slot: not slot[1])
        theirs = self.records[record].get('image_slot_order')
        if theirs and theirs != [slot for slot, _ in slots]:
            raise CheckpointError(f'{record}: the views lie in the order {", ".join(theirs)}')
        return slots

    def _picture(self, camera: str | None) -> NDArray[np.uint8] | None:
        name = f'raw.{camera}'
        if camera is None or name not in self._tensors.names:
            return None
        pixels = self._tensors.read(name)
        return (pixels.permute(1, 2, 0) if pixels.shape[0] == 3 else pixels).contiguous().numpy()


def openpi_facts(facts: Mapping[str, Any]) -> tuple[dict[str, str], Declared]:
    """From camera to slot, and what a contract would declare. Raises CheckpointError."""
    transforms: dict[str, Mapping[str, Any]] = {}
    for entry in facts['input_transforms']:
        transforms |= entry
    robot = next((name for name in transforms if name in OPENPI_CAMERAS), None)
    if strange := sorted(transforms.keys() - OPENPI_KNOWN):
        raise CheckpointError(f'not supported: the transform {strange[0]}')
    if robot is None:
        raise CheckpointError(f'no transform of a robot; known are {", ".join(OPENPI_CAMERAS)}')
    dims = facts['action_dim_out']
    mask = transforms.get('DeltaActions', {}).get('mask') or ()
    mode = 'quantiles' if transforms['Normalize']['use_quantiles'] else 'mean_std'
    cameras = OPENPI_CAMERAS[robot]
    return cameras, Declared(
        state_names=tuple(f'state {i}' for i in range(facts['state_dim'])),
        action_names=tuple(f'action {i}' for i in range(dims)),
        views=tuple(cameras.values()),
        relative=(*mask, *(False,) * dims)[:dims],
        state_in_prompt=transforms['TokenizePrompt']['discrete_state_input'],
        normalization={'state': mode, 'action': mode},
        conversion='aloha' if transforms[robot].get('adapt_to_pi') else 'none',
        fps=TIMELESS,
    )


def widths(dims: Mapping[str, int]) -> ModelConfig:
    """PI05 of other widths, which neither project writes down: `dims` of case.json."""
    return replace(
        PI05,
        name='recorded',
        dtype='float32',
        vision=VisionConfig(
            image_size=dims['image_size'],
            patch_size=dims['patch'],
            width=dims['vision_width'],
            layers=dims['vision_layers'],
            heads=dims['vision_heads'],
            mlp=dims['vision_mlp'],
        ),
        backbone=BackboneConfig(
            width=dims['text_width'],
            layers=dims['layers'],
            heads=dims['heads'],
            kv_heads=dims['kv_heads'],
            head_dim=dims['head_dim'],
            mlp=dims['text_mlp'],
            vocab_size=dims['vocab'],
        ),
        expert=ExpertConfig(width=dims['expert_width'], mlp=dims['expert_mlp']),
    )


def grid(steps: int) -> Tensor:
    """Our own times, float32 [steps]: each is made in double and rounded once."""
    return torch.tensor([1.0 + step * (-1.0 / steps) for step in range(steps)])
