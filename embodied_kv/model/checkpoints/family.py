"""What distinguishes the policies of LeRobot that are served: a `Family` for each.

pi0.5 and pi0 are described here. A further family is a module like `smolvla` and an entry of
`lerobot.FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embodied_kv.config import ModelConfig, pi0
from embodied_kv.model.checkpoints import hub
from embodied_kv.model.processing import images

NORMALIZE = {'eps', 'features', 'norm_map'}
RELATIVE = {'enabled', 'exclude_joints', 'action_names'}
TOKENIZER = {
    *('max_length', 'task_key', 'padding_side', 'padding', 'truncation', 'tokenizer_name'),
}
FIRST = {'rename_observations_processor': {'rename_map'}, 'to_batch_processor': set()}


@dataclass(frozen=True)
class Stated:
    """What a folder states about the dimensions of its model.

    settings: config.json. state_width: the dims to which LeRobot pads the state. views: number of
    views. tokenizer: returns its file. say: receives lines for the user about what is fetched.
    """

    path: Path
    settings: Mapping[str, Any]
    state_width: int
    views: int
    tokenizer: Callable[[], Path]
    say: hub.Say


@dataclass(frozen=True)
class Family:
    """A policy of LeRobot.

    preprocessor: processor steps in the order in which LeRobot runs them, each with its supported
    settings. max_text: tokens of a prompt by default. dimensions: returns those of a model from
    what a folder states and the dimensions of pi0.5. was_padded: LeRobot before 0.5.0 padded
    states and images. with_state: the prompt may contain the state. begins: the prompt begins with
    <bos>. adds_cameras: LeRobot adds empty cameras that are not among the features.
    """

    preprocessor: Mapping[str, set[str]]
    max_text: int
    dimensions: Callable[[Stated, ModelConfig], ModelConfig]
    resize: images.Resize = images.BILINEAR
    was_padded: bool = True
    with_state: bool = False
    begins: bool = True
    adds_cameras: bool = False


PI05 = Family(
    preprocessor={
        **FIRST,
        'relative_actions_processor': RELATIVE,
        'normalizer_processor': NORMALIZE,
        'pi05_prepare_state_tokenizer_processor_step': {'max_state_dim', 'task_key'},
        'tokenizer_processor': TOKENIZER,
        'device_processor': {'device'},
    },
    max_text=200,
    dimensions=lambda stated, base: base,
    with_state=True,
)
PI0 = Family(
    preprocessor={
        **FIRST,
        'pi0_new_line_processor': set(),
        'tokenizer_processor': TOKENIZER,
        'device_processor': {'device'},
        'relative_actions_processor': RELATIVE,
        'normalizer_processor': NORMALIZE,
    },
    max_text=48,
    dimensions=lambda stated, base: pi0(base, stated.state_width),
)
