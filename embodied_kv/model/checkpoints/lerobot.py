"""Checkpoints of LeRobot: the folder that `save_pretrained` writes, and the processing in it.

Files that contradict each other, and settings that would change the result and are not supported,
are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embodied_kv import config as presets
from embodied_kv.config import ModelConfig
from embodied_kv.model.checkpoints import hub, lora, smolvla, statistics
from embodied_kv.model.checkpoints.checkpoint import Checkpoint
from embodied_kv.model.checkpoints.facts import (
    Facts,
    find_tokenizer,
    refuse_unknown,
    spell,
)
from embodied_kv.model.checkpoints.family import NORMALIZE, PI0, PI05, Family, Stated
from embodied_kv.model.files import read_json
from embodied_kv.model.processing import images
from embodied_kv.model.processing.normalizer import Normalizer, Scaling
from embodied_kv.model.processing.processing import Processing
from embodied_kv.model.processing.prompt import PromptStyle
from embodied_kv.model.weights import CheckpointError, Weights, WeightSource
from embodied_kv.robots.declared import Declared

CONFIG = 'config.json'
STATE, ACTION = 'observation.state', 'action'
EMPTY = 'observation.images.empty_camera_'
MODES = {'QUANTILES': 'quantiles', 'MEAN_STD': 'mean_std'}
# Settings of config.json with one supported value.
FIXED = {
    'n_obs_steps': 1,
    'paligemma_variant': 'gemma_2b',
    'action_expert_variant': 'gemma_300m',
    'use_visual_memory': False,
    'use_proprioceptive_memory': False,
    'adapt_to_pi_aloha': False,
    'use_delta_joint_actions_aloha': False,
}
HONOURED = {
    *('type', 'input_features', 'output_features', 'dtype', 'chunk_size', 'n_action_steps'),
    *('max_action_dim', 'max_state_dim', 'num_inference_steps', 'min_period', 'max_period'),
    'image_resolution',
    *('use_relative_actions', 'relative_exclude_joints', 'action_feature_names', 'use_peft'),
    *('empty_cameras', 'tokenizer_max_length', 'normalization_mapping'),
    'rtc_training_max_delay',
    *('resize_imgs_with_padding', 'num_steps', 'vlm_model_name', 'load_vlm_weights'),
    *('add_image_special_tokens', 'attention_mode', 'num_expert_layers', 'num_vlm_layers'),
    *('self_attn_every_n_layers', 'expert_width_multiplier'),
}
# Only training, the hub or LeRobot's own device handling read these.
HARMLESS = {
    *('device', 'use_amp', 'push_to_hub', 'repo_id', 'private', 'tags', 'license'),
    *('pretrained_path', 'pretrained_revision', 'gradient_checkpointing'),
    *('compile_model', 'compile_mode', 'freeze_vision_encoder', 'train_expert_only'),
    *('memory_frames', 'memory_stride', 'memory_temporal_attention_every'),
    *('time_sampling_beta_alpha', 'time_sampling_beta_beta', 'time_sampling_scale'),
    *('time_sampling_offset', 'optimizer_lr', 'optimizer_betas', 'optimizer_eps'),
    *('optimizer_weight_decay', 'optimizer_grad_clip_norm', 'scheduler_warmup_steps'),
    *('scheduler_decay_steps', 'scheduler_decay_lr'),
    'train_state_proj',
    # Tokens and positions behind the prompt that no token reads, and LeRobot's own cache.
    *('prefix_length', 'pad_language_to', 'use_cache'),
    'rtc_config',  # how LeRobot executes; here `engine.rtc` determines it
}
TOKENIZERS = ('tokenizer.json', 'tokenizer.model', 'paligemma_tokenizer.model')
FAMILIES = {'pi05': PI05, 'pi0': PI0, 'smolvla': smolvla.FAMILY}  # by the type of config.json
POSTPROCESSOR = {
    'unnormalizer_processor': NORMALIZE,
    'absolute_actions_processor': {'enabled'},
    'device_processor': {'device'},
}
PROCESSORS = 'preprocessor', 'postprocessor'
OPTIONAL = {
    *('rename_observations_processor', 'to_batch_processor', 'device_processor'),
    *('relative_actions_processor', 'absolute_actions_processor'),
}


def is_lerobot(folder: Path) -> bool:
    """Return whether the folder has a processor file, or a config that names a policy."""
    config = folder / CONFIG
    if (folder / 'policy_preprocessor.json').is_file():
        return True
    return config.is_file() and {'type', 'input_features'} <= read_json(config).keys()


def describe(
    folder: Path,
    declared: Declared | None,
    config: ModelConfig | None = None,
    say: hub.Say = hub.silent,
) -> Checkpoint:
    """Return the description of a folder.

    config: widths other than those of PI05. say: receives lines for the user about what is
    fetched. Raises CheckpointError.
    """
    files, facts = LeRobotFolder.read(folder, say), Facts(folder, declared)
    settings = files.settings
    names = {
        'state': facts.settle('state_names', needed=False),
        'action': facts.settle('action_names', files.action_names(), needed=False),
    }
    modes = facts.modes(files.modes())
    vectors = {
        part: files.vector(feature, modes[part], facts.declared.dims(part))
        for part, feature in (('state', STATE), ('action', ACTION))
    }
    dims = {part: facts.dims(part, vector.dims) for part, vector in vectors.items()}
    relative = facts.settle('relative', files.relative(dims['action']))
    if any(relative[dims['state'] :]):
        files.refuse(f'relative actions beyond the {dims["state"]} dims of the state')
    family = files.family
    in_prompt = family.with_state and facts.settle('state_in_prompt', True)
    for name, value in dict(resize='bilinear', conversion='none').items():
        facts.settle(name, value)
    # LeRobot introduced the field after it had stopped padding the state.
    is_new = not family.was_padded or 'use_relative_actions' in settings
    old = facts.settle('lerobot_before_0_5', False if is_new else None)
    chunk_size, fps = facts.settle('chunk_size', settings.get('chunk_size')), facts.settle('fps')
    slots, renames = files.views(), files.renames()
    views = facts.views(tuple(slot for slot in slots if not slot.startswith(EMPTY)), renames)
    facts.check()
    state, action = (v.scale(facts.units(part, v.dims)) for part, v in vectors.items())
    return Checkpoint(
        kind='lerobot',
        path=folder,
        config=replace(
            files.config(config or presets.PI05),
            views=views,
            chunk_size=chunk_size,
            state_dim=dims['state'],
            action_dim=dims['action'],
            action_dt=1 / fps,
        ),
        processing=Processing(
            Normalizer(state, action, np.array(relative, bool)),
            # LeRobot before 0.5.0 padded the state, and images with -3.
            PromptStyle(
                with_state=in_prompt,
                cleans=in_prompt,
                begins=family.begins,
                padding=vectors['state'].constants(),
                padded_dims=files.width(STATE) if old else 0,
            ),
            images.BILINEAR_BEFORE_0_5 if old else family.resize,
        ),
        weights=files.weights(),
        tokenizer_path=files.tokenizer(),
        slots=slots,
        n_action_steps=settings.get('n_action_steps', chunk_size),
        fps=fps,
        state_names=names['state'],
        action_names=names['action'],
        euler_steps=settings.get('num_inference_steps', settings.get('num_steps', 10)),
        max_action_prefix=settings.get('rtc_training_max_delay', 0),
        says=None if in_prompt else (),  # the others were trained on actions alone
        renames=renames,
        padded={part: v.most for part, v in vectors.items() if v.most > v.dims},
    )


@dataclass(frozen=True)
class Step:
    """A processor step. state_file: its statistics. artifacts: path of the file of a setting."""

    settings: Mapping[str, Any]
    state_file: Path | None
    artifacts: Mapping[str, str]


def read_steps(path: Path, known: Mapping[str, set[str]]) -> dict[str, Step]:
    """Return the steps of a processor file by name; an absent optional step has no settings.

    Raises:
        CheckpointError: A step or setting is missing, unknown or misplaced.
    """
    entries = read_json(path).get('steps')
    if not isinstance(entries, list):
        raise CheckpointError(f'{path}: steps are missing')
    found: dict[str, Step] = {}
    for entry in entries:
        name = entry.get('registry_name') or entry.get('class') or '?'
        if name not in known or name in found:
            what = 'is there twice' if name in found else 'is not supported'
            raise CheckpointError(
                f'{path}: the step {name} {what}; supported are {", ".join(known)}'
            )
        settings = entry.get('config') or {}
        refuse_unknown(Path(f'{path}: {name}'), settings, known[name])
        state = entry.get('state_file')
        state_file = path.parent / Path(state).name if state else None
        found[name] = Step(settings, state_file, entry.get('artifacts') or {})
    if [*found] != (order := [name for name in known if name in found]):
        raise CheckpointError(f'{path}: its steps are not in the order {", ".join(order)}')
    for name in (*known, *OPTIONAL):
        if name not in found:
            if name not in OPTIONAL:
                raise CheckpointError(f'{path}: the step {name} is missing')
            found[name] = Step({}, None, {})
    return found


@dataclass(frozen=True, eq=False)
class Vector:
    """The state or the action in the files.

    dims: the numbers of the robot. feature: dims in config.json. found: the statistics that the
    mode reads, float64 [count].
    """

    dims: int
    feature: int
    mode: str
    eps: float
    found: Mapping[str, NDArray[np.float64]]

    @property
    def most(self) -> int:
        """Return the dims of config.json or of the statistics, whichever are more."""
        return max(self.feature, *(len(values) for values in self.found.values()))

    def scale(self, units: ArrayLike) -> Scaling:
        """Return the scaling of the numbers of the robot. units: as of `Scaling`."""
        found = {name: values[: self.dims] for name, values in self.found.items()}
        return Scaling.lerobot(self.mode, found, self.eps, units)

    def constants(self) -> tuple[float, ...]:
        """Return the normalised zeros after the numbers of the robot in the training data.

        LeRobot wrote them into the prompt if the data set itself was padded, so that config.json
        and the statistics have the same dims.
        """
        whole = Scaling.lerobot(self.mode, self.found, self.eps)
        count = whole.origin.shape[-1]
        if count != self.feature:
            return ()
        return tuple(whole.exact(np.zeros(count))[self.dims :].tolist())


@dataclass(frozen=True)
class LeRobotFolder:
    """The three files that describe a policy of LeRobot.

    say: receives lines for the user about what is fetched from the hub.
    """

    path: Path
    settings: Mapping[str, Any]
    before: Mapping[str, Step]
    after: Mapping[str, Step]
    say: hub.Say

    @classmethod
    def read(cls, path: Path, say: hub.Say) -> LeRobotFolder:
        config = path / CONFIG
        settings = read_json(config)
        kind = settings.get('type')
        if kind not in FAMILIES:
            raise CheckpointError(
                f'{config}: type must be {" or ".join(FAMILIES)} (got {kind}); other '
                'policies of LeRobot are not supported'
            )
        refuse_unknown(config, settings, HONOURED | HARMLESS | FIXED.keys())
        for name, value in FIXED.items():
            if settings.get(name, value) != value:
                raise CheckpointError(
                    f'{config}: not supported: {name} = {settings[name]}; it must be {value}'
                )
        if not any((path / f'policy_{n}.json').is_file() for n in PROCESSORS):
            raise CheckpointError(
                f'{path} must have policy_preprocessor.json and policy_postprocessor.json; a '
                'checkpoint of LeRobot before 0.4 has its statistics in the weights: convert it '
                'with python -m lerobot.processor.migrate_policy_normalization'
            )
        before, after = (
            read_steps(path / f'policy_{name}.json', known)
            for name, known in (
                ('preprocessor', FAMILIES[kind].preprocessor),
                ('postprocessor', POSTPROCESSOR),
            )
        )
        return cls(path, settings, before, after, say)

    @property
    def family(self) -> Family:
        """Return the family of the policy."""
        return FAMILIES[self.settings['type']]

    def refuse(self, what: str) -> NoReturn:
        raise CheckpointError(f'{self.path}: {what}')

    def config(self, base: ModelConfig) -> ModelConfig:
        """Return the dimensions in config.json, with the widths of `base`."""
        settings, size = self.settings, [base.vision.image_size] * 2
        if settings.get('image_resolution', size) != size:
            self.refuse(f'not supported: image_resolution = {settings["image_resolution"]}')
        views = len(self.views())
        stated = self.path, settings, self.width(STATE), views, self.tokenizer, self.say
        base = self.family.dimensions(Stated(*stated), base)
        return replace(
            base,
            expert=replace(
                base.expert,
                time_min_period=settings.get('min_period', base.expert.time_min_period),
                time_max_period=settings.get('max_period', base.expert.time_max_period),
            ),
            max_text=self.max_text(),
            padded_action_dim=settings.get('max_action_dim', base.padded_action_dim),
            dtype=settings.get('dtype', base.dtype),
        )

    def dims(self, features: str, name: str) -> int:
        shape = (self.settings.get(features) or {}).get(name, {}).get('shape') or []
        if len(shape) != 1:
            self.refuse(f'config.json: {features} has no {name} of one dimension')
        return shape[0]

    def views(self) -> tuple[str, ...]:
        """Return all views in the order of the network; empty cameras are masked views."""
        inputs = self.settings['input_features']
        slots = tuple(name for name, f in inputs.items() if f.get('type') == 'VISUAL')
        count = self.settings.get('empty_cameras', 0)
        if self.family.adds_cameras:
            added = (f'{EMPTY}{number}' for number in range(count))
            slots = (*slots, *(name for name in added if name not in slots))
        empty = sum(name.startswith(EMPTY) for name in slots)
        if not self.family.adds_cameras and empty != count:
            self.refuse(f'empty_cameras is {self.settings.get("empty_cameras")}, but {empty} '
                        'features are empty cameras')  # fmt: skip
        if empty == len(slots):
            self.refuse('config.json: input_features has no camera')
        return slots

    def modes(self) -> dict[str, str]:
        """Return the modes of state and action, on which all three files must agree."""
        steps = self.before['normalizer_processor'], self.after['unnormalizer_processor']
        maps = [self.settings.get('normalization_mapping') or {}]
        maps += [step.settings.get('norm_map') or {} for step in steps]
        if any(each != maps[0] for each in maps):
            self.refuse(f'normalization_mapping and norm_map differ: {" / ".join(map(str, maps))}')
        if maps[0].get('VISUAL', 'IDENTITY') != 'IDENTITY':
            self.refuse(f'not supported: images normalised by {maps[0]["VISUAL"]}')
        found = {part: str(maps[0].get(part.upper())) for part in ('state', 'action')}
        for part, mode in found.items():
            if mode not in MODES:
                self.refuse(f'not supported: {part} normalised by {mode}')
        return {part: MODES[mode] for part, mode in found.items()}

    def action_names(self) -> tuple[str, ...] | None:
        """Return the names in config.json or in the relative actions step; they must agree."""
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
        """Return which actions are offsets: `RelativeActionsProcessorStep._build_mask`."""
        step = self.before['relative_actions_processor'].settings
        enabled = {
            'config.json': self.settings.get('use_relative_actions', False),
            'policy_preprocessor.json': step.get('enabled', False),
            'policy_postprocessor.json': self.after['absolute_actions_processor'].settings.get(
                'enabled', False
            ),
        }
        if len({*enabled.values()}) > 1:
            self.refuse(f'its files differ in whether actions are relative: {enabled}')
        if not step.get('enabled', False):
            return (False,) * dims
        words = [str(word).lower() for word in step.get('exclude_joints') or () if word]
        names = step.get('action_names') or ()  # without names LeRobot excludes nothing
        excluded = [any(word in str(name).lower() for word in words) for name in names[:dims]]
        return tuple(not out for out in excluded) + (True,) * (dims - len(excluded))

    def renames(self) -> Mapping[str, str]:
        """Return the rename_map of the preprocessor."""
        return self.before['rename_observations_processor'].settings.get('rename_map') or {}

    def width(self, feature: str) -> int:
        """Return the dims to which LeRobot pads the state or the action."""
        return self.settings.get('max_state_dim' if feature == STATE else 'max_action_dim', 32)

    def vector(self, feature: str, mode: str, declared: int | None) -> Vector:
        """Return the state or the action. declared: its dims in the contract.

        The dims of a state are those of its statistics, because LeRobot keeps the input_features
        of the base model that it fine-tunes, and its normaliser does not compare them with the
        data. The padding of the network is ignored. Raises CheckpointError.
        """
        is_state, width = feature == STATE, self.width(feature)
        shape = self.dims('input_features' if is_state else 'output_features', feature)
        eps, found, where = self._statistics(feature, mode)
        count = len(next(iter(found.values())))
        dims = count
        if count == width:
            fewer = [n for n in (shape, declared) if n is not None and n < count]
            dims = next((n for n in fewer if statistics.is_padding(found, mode, n)), count)
        if not is_state:
            statistics.refuse_wide(where, feature, max(dims, shape), width, self.path / CONFIG)
        if not is_state and shape not in (count, dims, width):
            first = next(iter(found))
            raise CheckpointError(
                f'{where}.{first} is [{count}], expected [{shape}] by output_features of '
                f'{CONFIG}; use the statistics of the run that trained these weights'
            )
        return Vector(dims, shape, mode, eps, found)

    def _statistics(
        self, feature: str, mode: str
    ) -> tuple[float, dict[str, NDArray[np.float64]], str]:
        """Return eps and the statistics of a feature, and where they are, for errors.

        Both processors must have the same statistics.
        """
        found = []
        for step in (self.before['normalizer_processor'], self.after['unnormalizer_processor']):
            if step.state_file is None:
                self.refuse('a normaliser names no state_file with its statistics')
            entries = statistics.read_lerobot(step.state_file, feature)
            where = f'{step.state_file}: {feature}'
            values = statistics.pick(where, entries, mode, (statistics.count(entries, mode),))
            found.append((step.settings.get('eps', 1e-8), values, where))
        (eps, values, where), (other_eps, others, _) = found
        if eps != other_eps or not all(np.array_equal(values[n], others[n]) for n in values):
            self.refuse(f'its two processors normalise {feature} by different statistics')
        return eps, values, where

    def tokenizer(self) -> Path:
        """Return the tokenizer file of the preprocessor, or the one next to the weights."""
        step = self.before['tokenizer_processor']
        if artifact := step.artifacts.get('tokenizer_name'):
            place = Path(artifact)
            if place.is_absolute() or '..' in place.parts:
                self.refuse(f'the tokenizer lies outside the folder: {artifact}')
            return find_tokenizer(self.path / place, TOKENIZERS[:1], 'tokenizer.json is missing')
        name = step.settings.get('tokenizer_name')
        try:
            return find_tokenizer(self.path, TOKENIZERS, 'the preprocessor names none')
        except CheckpointError:
            if not name:
                raise
        try:
            return hub.fetch(name, 'tokenizer.json', self.say)
        except CheckpointError as error:
            self.refuse(
                f'it has no tokenizer, and names {name} on the Hugging Face hub: {error}; or copy '
                'its tokenizer.json next to the weights'
            )

    def max_text(self) -> int:
        step = self.before['tokenizer_processor'].settings
        length = step.get('max_length', self.family.max_text)
        if self.settings.get('tokenizer_max_length', length) != length:
            self.refuse(f'tokenizer_max_length and max_length differ; the latter is {length}')
        return length

    def weights(self) -> WeightSource:
        """Return the weights, with an adapter folded in.

        Raises:
            CheckpointError: The base policy of an adapter is missing.
        """
        if not (self.path / lora.PEFT_CONFIG).is_file():
            weights = Weights(self.path)
            if self.settings.get('use_peft') or lora.has_adapters(weights):
                self.refuse(f'an adapter without {lora.PEFT_CONFIG}: its scaling is unknown')
            return weights
        base = read_json(self.path / lora.PEFT_CONFIG).get('base_model_name_or_path') or ''
        places = [self.path, self.path / base]
        reason = ''
        if base and not places[1].is_dir():
            try:
                places.append(hub.locate(base, self.say).path)
            except CheckpointError as error:
                reason = f' ({error})'
        for place in places:
            if (place / 'model.safetensors').is_file():
                return lora.fold_peft(self.path, Weights(place))
        self.refuse(
            f'an adapter of {base or "an unnamed policy"}: copy the model.safetensors of that '
            f'policy next to it{reason}'
        )
