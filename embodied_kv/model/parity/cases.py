"""Recorded cases of LeRobot and openpi, and the comparison with them.

A case is the folder of a checkpoint with case.json, case.safetensors and, for openpi, facts.json,
which holds what only the code of openpi states about the robot.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embodied_kv.config import PI05, ModelConfig
from embodied_kv.model.checkpoints.checkpoint import Checkpoint
from embodied_kv.model.checkpoints.open import open_checkpoint
from embodied_kv.model.files import read_json
from embodied_kv.model.weights import CheckpointError, Weights
from embodied_kv.robots.declared import Declared

ABOUT, TENSORS, FACTS = 'case.json', 'case.safetensors', 'facts.json'
ANY_RATE = 1.0  # 1/s: no recorded number depends on the rate
# The camera names of each robot's transform, and the slots that it puts them into.
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
# The transforms of openpi that are supported.
OPENPI_KNOWN = {
    *OPENPI_CAMERAS,
    *('InjectDefaultPrompt', 'DeltaActions', 'Normalize', 'ResizeImages', 'TokenizePrompt'),
    'PadStatesAndActions',
}
# For each part of a config: its fields, and the keys of `dims` in case.json.
WIDTHS = {
    'vision': dict(
        image_size='image_size',
        patch_size='patch',
        width='vision_width',
        layers='vision_layers',
        heads='vision_heads',
        mlp='vision_mlp',
    ),
    'backbone': dict(
        width='text_width',
        layers='layers',
        heads='heads',
        kv_heads='kv_heads',
        head_dim='head_dim',
        mlp='text_mlp',
        vocab_size='vocab',
    ),
    'expert': dict(width='expert_width', mlp='expert_mlp'),
}


@dataclass(frozen=True, eq=False)
class Quantity:
    """A computed tensor that is compared with a recorded one.

    tolerance: one for all entries, or a tensor that broadcasts to the value. where: the entries
    that are compared; None for all.
    """

    value: Tensor
    tolerance: float | Tensor
    where: Tensor | None = None

    def compare(self, recorded: Tensor) -> tuple[float, bool]:
        """Return the largest absolute difference, and whether all are within tolerance.

        The difference is infinite where the shapes differ or a value is NaN.
        """
        if self.value.shape != recorded.shape:
            return float('inf'), False
        difference = (self.value.cpu().double() - recorded.cpu().double()).abs()
        difference = difference.nan_to_num(float('inf'))
        within = difference <= self.tolerance
        if self.where is not None:
            where = self.where.cpu()
            difference, within = difference[where], within[where]
        error = float(difference.max()) if difference.numel() else 0.0
        return error, bool(within.all())

    @property
    def widest(self) -> float:
        """The largest tolerance."""
        return float(torch.as_tensor(self.tolerance).max())


def report(
    path: str,
    names: Sequence[str],
    read: Callable[[str], Tensor],
    known: Mapping[str, Quantity],
) -> bool:
    """Print a line for each recorded quantity, then the verdict; return whether all are ok."""
    failed, width = [], max(44, *(len(f'expected.{name}') for name in names))
    for name in names:
        label = f'expected.{name}'
        if name not in known:
            failed.append(label)
            print(f'{label:<{width}} FAIL  unknown quantity')
            continue
        ours, recorded = known[name], read(name)
        error, ok = ours.compare(recorded)
        failed += [] if ok else [label]
        shapes = ''
        if ours.value.shape != recorded.shape:
            shapes = f'  shape {list(ours.value.shape)}, recorded {list(recorded.shape)}'
        print(
            f'{label:<{width}} max abs error {error:.2e}  '
            f'tolerance {ours.widest:.1e}  {"ok" if ok else "FAIL"}{shapes}'
        )
    count = len(names)
    if failed or not count:
        print(f'{path}: FAIL, {len(failed)} of {count} quantities: {", ".join(failed)}')
    else:
        print(f'{path}: ok, all {count} quantities within tolerance')
    return bool(count) and not failed


def exit_status(paths: Sequence[str], compare: Callable[[str], bool]) -> int:
    """Compare each path and return the exit status: 0, 1 if one differs, 2 if one cannot be read.

    A path that raises CheckpointError is named on stderr.
    """
    torch.backends.cudnn.allow_tf32 = False  # it would compute a float32 convolution with 10 bits
    status = 0
    for path in paths:
        try:
            status = max(status, 0 if compare(path) else 1)
        except CheckpointError as error:
            print(f'{path}: cannot be compared: {error}', file=sys.stderr)
            status = 2
    return status


def is_case(path: str | Path) -> bool:
    """Return whether a path is the folder of a case."""
    return (Path(path) / ABOUT).is_file()


class Case:
    """A recorded case. records: the entries of case.json by the name of the observation.

    Raises CheckpointError where a part is missing, or the checkpoint cannot be opened.
    """

    def __init__(self, folder: str | Path) -> None:
        folder = Path(folder)
        self.about = read_json(folder / ABOUT)
        self.records: dict[str, dict] = self.about['records']
        self._tensors = Weights(folder / TENSORS)
        cameras, declared, self._prompt = None, Declared(fps=ANY_RATE), None
        if (folder / FACTS).is_file():
            facts = read_json(folder / FACTS)
            cameras, declared = openpi_facts(facts)
            self._prompt = facts.get('default_prompt')
        known = widths(self.about['dims'])
        self.checkpoint: Checkpoint = open_checkpoint(folder, declared, known)
        self._cameras = cameras or {view: view for view in self.checkpoint.slots}

    def images(self, record: str) -> tuple[NDArray[np.uint8] | None, ...]:
        """Return uint8 [H, W, 3] or None for each view of the checkpoint."""
        absent = self.records[record]['cameras_not_given']
        given = {self._cameras[camera]: camera for camera in self._cameras if camera not in absent}
        return tuple(self._picture(given.get(view)) for view in self.checkpoint.config.views)

    def state(self, record: str) -> NDArray[np.float64]:
        return self._tensors.read(f'{record}.raw.state').numpy()

    def instruction(self, record: str) -> str:
        about = self.records[record]
        return about.get('task') or about.get('prompt_given') or self._prompt or ''

    def noise(self) -> Tensor:
        """Return float32 [1, chunk, padded]."""
        return self._tensors.read('noise')

    def expected(self, record: str) -> list[str]:
        """Return the names of the recorded quantities."""
        head = f'{record}.expected.'
        names = (name for name in self._tensors.names if name.startswith(head))
        return sorted(name.removeprefix(head) for name in names)

    @property
    def padding(self) -> int:
        """Return the id that pads the recorded tokens."""
        return self.about.get('pad_token_id', 0)

    def encoded_times(self) -> Tensor | None:
        """Return the encoded times of openpi in JAX, float32 [steps, width]; None for others."""
        name = 'expected.time_sincos'
        return self._tensors.read(name) if name in self._tensors.names else None

    def read(self, record: str, name: str) -> Tensor:
        return self._tensors.read(f'{record}.expected.{name}')

    def seen_slots(self, record: str) -> list[tuple[str, bool]]:
        """Return each view of the network in the order of this record, and whether it is present.

        LeRobot moves absent views to the end; openpi leaves each in its slot.
        """
        c = self.checkpoint.config
        seen = dict(zip(c.views, self.images(record), strict=True))
        slots = [(slot, seen.get(slot) is not None) for slot in self.checkpoint.slots]
        if self.checkpoint.kind == 'lerobot':
            slots.sort(key=lambda slot: not slot[1])
        if c.view_slots:  # SmolVLA leaves out further absent views
            slots = slots[: sum(there for _, there in slots) + c.empty_views]
        recorded = self.records[record].get('image_slot_order')
        if recorded and recorded != [slot for slot, _ in slots]:
            raise CheckpointError(f'{record}: the views lie in the order {", ".join(recorded)}')
        return slots

    def _picture(self, camera: str | None) -> NDArray[np.uint8] | None:
        name = f'raw.{camera}'
        if camera is None or name not in self._tensors.names:
            return None
        pixels = self._tensors.read(name)
        return (pixels.permute(1, 2, 0) if pixels.shape[0] == 3 else pixels).contiguous().numpy()


def openpi_facts(facts: Mapping[str, Any]) -> tuple[dict[str, str], Declared]:
    """Return the slot of each camera, and the facts that a contract would declare.

    Raises CheckpointError.
    """
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
        chunk_size=facts.get('model', {}).get('action_horizon'),
        fps=ANY_RATE,
    )


def config_parts(
    keys: Mapping[str, Mapping[str, str]], read: Callable[[str], float]
) -> dict[str, Any]:
    """Return the parts of PI05 with other widths. keys: as WIDTHS; read: value of a key."""
    return {
        part: replace(getattr(PI05, part), **{field: read(key) for field, key in names.items()})
        for part, names in keys.items()
    }


def widths(dims: Mapping[str, int]) -> ModelConfig | None:
    """Return PI05 with the widths in `dims` of case.json; neither project records them.

    None for SmolVLA, whose folder states its own.
    """
    if 'layers' not in dims:
        return None
    parts = config_parts(WIDTHS, dims.__getitem__)
    return replace(PI05, name='recorded', dtype='float32', **parts)
