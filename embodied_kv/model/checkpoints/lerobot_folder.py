"""LeRobot's folder, as `save_pretrained` writes policy and processors: what each file says.

Knows config.json of its pi05 and the settings of its processors. Files that contradict each other,
and what would change the result and is not done here, are refused by name. Knows no contracts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embodied_kv.model.checkpoints import lora, statistics
from embodied_kv.model.checkpoints.facts import (
    find_tokenizer,
    read_json,
    refuse_unknown,
    spell,
)
from embodied_kv.model.checkpoints.pipeline import POSTPROCESSOR, PREPROCESSOR, Step, read_steps
from embodied_kv.model.processing.normalizer import Scaling
from embodied_kv.model.weights import CheckpointError, Weights

STATE, ACTION = 'observation.state', 'action'
EMPTY = 'observation.images.empty_camera_'
MODES = {'QUANTILES': 'quantiles', 'MEAN_STD': 'mean_std'}
# What other values would change, and what they have to be.
FIXED = {
    'n_obs_steps': 1,
    'paligemma_variant': 'gemma_2b',
    'action_expert_variant': 'gemma_300m',
    'use_visual_memory': False,
    'use_proprioceptive_memory': False,
}
HONOURED = {
    *('type', 'input_features', 'output_features', 'dtype', 'chunk_size', 'n_action_steps'),
    *('max_action_dim', 'max_state_dim', 'num_inference_steps', 'min_period', 'max_period'),
    'image_resolution',
    *('use_relative_actions', 'relative_exclude_joints', 'action_feature_names', 'use_peft'),
    *('empty_cameras', 'tokenizer_max_length', 'normalization_mapping'),
    'rtc_training_max_delay',
}
# Read by training, by the hub or by LeRobot's own device handling alone.
HARMLESS = {
    *('device', 'use_amp', 'push_to_hub', 'repo_id', 'private', 'tags', 'license'),
    *('pretrained_path', 'pretrained_revision', 'gradient_checkpointing'),
    *('compile_model', 'compile_mode', 'freeze_vision_encoder', 'train_expert_only'),
    *('memory_frames', 'memory_stride', 'memory_temporal_attention_every'),
    *('time_sampling_beta_alpha', 'time_sampling_beta_beta', 'time_sampling_scale'),
    *('time_sampling_offset', 'optimizer_lr', 'optimizer_betas', 'optimizer_eps'),
    *('optimizer_weight_decay', 'optimizer_grad_clip_norm', 'scheduler_warmup_steps'),
    *('scheduler_decay_steps', 'scheduler_decay_lr'),
    'rtc_config',  # how LeRobot runs it; here `engine.rtc` says so
}
TOKENIZERS = ('tokenizer.json', 'tokenizer.model', 'paligemma_tokenizer.model')


def is_lerobot(folder: Path) -> bool:
    """Whether the folder looks like one: a processor file, or a config that names a policy."""
    config = folder / 'config.json'
    if (folder / 'policy_preprocessor.json').is_file():
        return True
    return config.is_file() and {'type', 'input_features'} <= read_json(config).keys()


@dataclass(frozen=True)
class LeRobotFolder:
    """The three files that say what a policy of LeRobot's is."""

    path: Path
    settings: Mapping[str, Any]
    before: Mapping[str, Step]
    after: Mapping[str, Step]

    @classmethod
    def read(cls, path: Path) -> LeRobotFolder:
        config = path / 'config.json'
        settings = read_json(config)
        if settings.get('type') != 'pi05':
            raise CheckpointError(f'{config}: a policy of type {settings.get("type")}, not pi05')
        refuse_unknown(config, settings, HONOURED | HARMLESS | FIXED.keys())
        for name, value in FIXED.items():
            if settings.get(name, value) != value:
                raise CheckpointError(
                    f'{config}: not supported: {name} = {settings[name]}; it has to be {value}'
                )
        steps = (
            read_steps(path / f'policy_{name}.json', known)
            for name, known in (('preprocessor', PREPROCESSOR), ('postprocessor', POSTPROCESSOR))
        )
        return cls(path, settings, *steps)

    def refuse(self, what: str) -> None:
        raise CheckpointError(f'{self.path}: {what}')

    def dims(self, features: str, name: str) -> int:
        shape = (self.settings.get(features) or {}).get(name, {}).get('shape') or []
        if len(shape) != 1:
            self.refuse(f'config.json: {features} has no {name} of one dimension')
        return shape[0]

    def views(self) -> tuple[str, ...]:
        """All views, in the order of the network; empty cameras are views without a picture."""
        inputs = self.settings['input_features']
        slots = tuple(name for name, f in inputs.items() if f.get('type') == 'VISUAL')
        empty = sum(name.startswith(EMPTY) for name in slots)
        if empty != self.settings.get('empty_cameras', 0):
            self.refuse(f'empty_cameras is {self.settings.get("empty_cameras")}, but {empty} '
                        'features are empty cameras')  # fmt: skip
        if empty == len(slots):
            self.refuse('config.json: input_features has no camera')
        return slots

    def modes(self) -> dict[str, str]:
        """Of state and action; that of config.json and of both processors, which have to agree."""
        steps = self.before['normalizer_processor'], self.after['unnormalizer_processor']
        maps = [self.settings.get('normalization_mapping') or {}]
        maps += [step.settings.get('norm_map') or {} for step in steps]
        if any(each != maps[0] for each in maps):
            self.refuse(f'normalization_mapping and norm_map differ: {" / ".join(map(str, maps))}')
        if maps[0].get('VISUAL', 'IDENTITY') != 'IDENTITY':
            self.refuse(f'not supported: images normalised by {maps[0]["VISUAL"]}')
        found = {part: maps[0].get(part.upper()) for part in ('state', 'action')}
        for part, mode in found.items():
            if mode not in MODES:
                self.refuse(f'not supported: {part} normalised by {mode}')
        return {part: MODES[mode] for part, mode in found.items()}

    def action_names(self) -> tuple[str, ...] | None:
        """From config.json and from the step of relative actions, which have to agree."""
        config = self.settings.get('action_feature_names')
        step = self.before['relative_actions_processor'].settings.get('action_names')
        if None not in (config, step) and config != step:
            self.refuse(
                'action_feature_names and action_names differ\n'
                f'  config.json:              {spell(config)}\n'
                f'  policy_preprocessor.json: {spell(step)}'
            )
        names = config or step
        return tuple(names) if names else None

    def relative(self, dims: int) -> tuple[bool, ...]:
        """Of each action, whether it is an offset: `RelativeActionsProcessorStep._build_mask`."""
        step = self.before['relative_actions_processor'].settings
        said = {
            'config.json': self.settings.get('use_relative_actions', False),
            'policy_preprocessor.json': step.get('enabled', False),
            'policy_postprocessor.json': self.after['absolute_actions_processor'].settings.get(
                'enabled', False
            ),
        }
        if len({*said.values()}) > 1:
            self.refuse(f'its files differ in whether actions are relative: {said}')
        if not step.get('enabled', False):
            return (False,) * dims
        words = [str(word).lower() for word in step.get('exclude_joints') or () if word]
        names = step.get('action_names') or ()  # without names LeRobot excludes nothing
        kept = [any(word in str(name).lower() for word in words) for name in names[:dims]]
        return tuple(not out for out in kept) + (True,) * (dims - len(kept))

    def scale(self, feature: str, mode: str, dims: int) -> Scaling:
        """Of a feature; both processors have to carry the same statistics of it."""
        found = []
        for step in (self.before['normalizer_processor'], self.after['unnormalizer_processor']):
            if step.state_file is None:
                self.refuse('a normaliser names no state_file with its statistics')
            entries = statistics.read_lerobot(step.state_file, feature)
            where = f'{step.state_file}: {feature}'
            values = statistics.pick(where, entries, mode, (dims,))
            found.append((step.settings.get('eps', 1e-8), values))
        (eps, values), (other_eps, others) = found
        if eps != other_eps or any((values[name] != others[name]).any() for name in values):
            self.refuse(f'its two processors normalise {feature} by different statistics')
        return Scaling.lerobot(mode, values, eps)

    def tokenizer(self) -> Path:
        """The file that lies with the preprocessor, or beside the weights."""
        step = self.before['tokenizer_processor']
        if artifact := step.artifacts.get('tokenizer_name'):
            place = Path(artifact)
            if place.is_absolute() or '..' in place.parts:
                self.refuse(f'the tokenizer lies outside the folder: {artifact}')
            return find_tokenizer(self.path / place, TOKENIZERS[:1], 'tokenizer.json is missing')
        name = step.settings.get('tokenizer_name')
        advice = (
            f'its files name {name} on the Hugging Face hub; accept its licence there, '
            f'`hf download {name} tokenizer.json`, and put the file beside the weights'
        )
        return find_tokenizer(self.path, TOKENIZERS, advice)

    def max_text(self) -> int:
        step = self.before['tokenizer_processor'].settings
        length = step.get('max_length', 200)
        if self.settings.get('tokenizer_max_length', length) != length:
            self.refuse(f'tokenizer_max_length and max_length differ; the latter is {length}')
        return length

    def weights(self) -> Weights | lora.FoldedWeights:
        """With an adapter folded in. Raises CheckpointError where the base is not at hand."""
        if not (self.path / lora.PEFT_CONFIG).is_file():
            weights = Weights(self.path)
            if self.settings.get('use_peft') or lora.has_adapters(weights):
                self.refuse(f'an adapter without {lora.PEFT_CONFIG}: its scaling is not said')
            return weights
        base = read_json(self.path / lora.PEFT_CONFIG).get('base_model_name_or_path') or ''
        for place in (self.path, self.path / base):
            if (place / 'model.safetensors').is_file():
                return lora.fold_peft(self.path, Weights(place))
        self.refuse(
            f'an adapter of {base or "a policy that is not named"}: put the model.safetensors of '
            'that policy beside it'
        )
