"""LeRobot's processor files: the steps that stand around a policy, in order, all of them known.

Knows the files' layout and which settings of a step this suite honours. A step or a setting that
is not known may change the result: it is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embodied_kv.model.checkpoints.facts import read_json, refuse_unknown
from embodied_kv.model.weights import CheckpointError

DEVICE = {'device'}
NORMALIZE = {'eps', 'features', 'norm_map'}
# Steps in the order in which LeRobot runs them, and the settings of each that are honoured here.
PREPROCESSOR = {
    'rename_observations_processor': {'rename_map'},
    'to_batch_processor': set(),
    'relative_actions_processor': {'enabled', 'exclude_joints', 'action_names'},
    'normalizer_processor': NORMALIZE,
    'pi05_prepare_state_tokenizer_processor_step': {'max_state_dim', 'task_key'},
    'tokenizer_processor': {
        *('max_length', 'task_key', 'padding_side', 'padding', 'truncation', 'tokenizer_name'),
    },
    'device_processor': DEVICE,
}
POSTPROCESSOR = {
    'unnormalizer_processor': NORMALIZE,
    'absolute_actions_processor': {'enabled'},
    'device_processor': DEVICE,
}
OPTIONAL = {
    *('rename_observations_processor', 'to_batch_processor', 'device_processor'),
    *('relative_actions_processor', 'absolute_actions_processor'),
}


@dataclass(frozen=True)
class Step:
    """settings: as in the file. state_file: of its statistics. artifacts: setting -> path."""

    settings: Mapping[str, Any]
    state_file: Path | None
    artifacts: Mapping[str, str]


def read_steps(path: Path, known: Mapping[str, set[str]]) -> dict[str, Step]:
    """The steps of a file, by name; an optional one that is not there has no settings.

    Raises CheckpointError that names the step or setting which is missing, unknown or misplaced.
    """
    entries = read_json(path).get('steps')
    if not isinstance(entries, list):
        raise CheckpointError(f'{path}: steps are missing')
    found: dict[str, Step] = {}
    for entry in entries:
        name = entry.get('registry_name') or entry.get('class') or '?'
        if name not in known or name in found:
            what = 'is there twice' if name in found else 'is not supported'
            raise CheckpointError(f'{path}: the step {name} {what}')
        settings = entry.get('config') or {}
        refuse_unknown(Path(f'{path}: {name}'), settings, known[name])
        state = entry.get('state_file')
        state_file = path.parent / Path(state).name if state else None
        found[name] = Step(settings, state_file, entry.get('artifacts') or {})
    if [*found] != (order := [name for name in known if name in found]):
        raise CheckpointError(f'{path}: its steps are not in the order {", ".join(order)}')
    for name in known:
        if name not in found:
            if name not in OPTIONAL:
                raise CheckpointError(f'{path}: the step {name} is missing')
            found[name] = Step({}, None, {})
    return found
