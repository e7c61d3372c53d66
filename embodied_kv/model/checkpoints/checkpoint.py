"""A checkpoint, described before it is loaded: what it computes, and in which words to wire it.

Knows what all kinds of folders have in common. Does not know files: `own`, `lerobot` and `openpi`
read them, and leave nothing open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from embodied_kv.config import ModelConfig
from embodied_kv.model.checkpoints.facts import spell
from embodied_kv.model.checkpoints.lora import FoldedWeights
from embodied_kv.model.pi05 import Pi05
from embodied_kv.model.policy import Policy
from embodied_kv.model.processing.processing import Processing
from embodied_kv.model.tokenizer import Tokenizer
from embodied_kv.model.weights import CheckpointError, Weights, fill


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """kind: 'own', 'lerobot' or 'openpi'. path: of the folder.

    config: dims of state and action are the robot's own; `views` are those that have a camera, in
    the network's order; `dtype` is what the project serves it in. slots: all views of the network,
    in order. tokenizer_path: a tokenizer.json or SentencePiece's `.model`. state_names,
    action_names: None where nobody says them. fps: of the actions, 1/s; None where nobody says it.
    n_action_steps: actions that its makers execute of a chunk. euler_steps: theirs, of a chunk.
    most_given: first actions of a chunk that it was trained to be given, at most; 0: none.
    says: the prompts that it learnt to answer, () for none; None where nobody says it.
    renames: what the training data called a view -> what the checkpoint calls it.
    """

    kind: str
    path: Path
    config: ModelConfig
    processing: Processing
    weights: Weights | FoldedWeights
    tokenizer_path: Path
    slots: tuple[str, ...]
    n_action_steps: int
    fps: float | None = None
    state_names: tuple[str, ...] | None = None
    action_names: tuple[str, ...] | None = None
    euler_steps: int = 10
    most_given: int = 0
    says: tuple[str, ...] | None = None
    renames: Mapping[str, str] = field(default_factory=dict)

    @property
    def weights_path(self) -> Path:
        return self.weights.path

    @property
    def empty_views(self) -> tuple[str, ...]:
        """Views of the network that have no camera: masked in every frame."""
        return tuple(slot for slot in self.slots if slot not in self.config.views)

    def tokenizer(self) -> Tokenizer:
        """Raises CheckpointError where it is missing, or encodes otherwise than its project."""
        try:
            tokenizer = Tokenizer.load(self.tokenizer_path, limit=self.config.backbone.vocab_size)
        except ValueError as error:
            raise CheckpointError(f'{self.path}: {error}') from error
        if self.kind == 'lerobot' and self.tokenizer_path.suffix == '.json':
            if tokenizer.frame != [tokenizer.bos]:
                raise CheckpointError(
                    f'{self.tokenizer_path} puts the ids {tokenizer.frame} around a text, '
                    f'PaliGemma puts its BOS, {tokenizer.bos}, before it'
                )
        return tokenizer

    def fill(self, model: Pi05) -> None:
        """Copy the weights into a model of these dimensions. Raises CheckpointError."""
        fill(model, self.weights, model.config)

    def load(self, device: str = 'cpu', dtype: str | None = None) -> Policy:
        """The policy. dtype: None is the config's. Raises CheckpointError."""
        config = replace(self.config, dtype=dtype or self.config.dtype)
        tokenizer, model = self.tokenizer(), Pi05.empty(config, device)
        self.fill(model)
        return Policy(config, model, tokenizer, self.processing, self.most_given, self.says)

    def lines(self) -> list[str]:
        """What it means, a fact a line, for people."""
        c, p = self.config, self.processing
        n = p.normalizer
        relative = [i for i, offset in enumerate(n.relative) if offset]
        names = self.action_names or range(len(n.relative))
        state = 'with the state' if p.prompt.with_state else 'without the state'
        facts = {
            'kind': f'{self.kind}, {self.weights_path}',
            'state': f'{c.state_dim} dims, {n.state_scale.mode}: {_named(self.state_names)}',
            'action': f'{c.action_dim} dims, {n.action_scale.mode}: {_named(self.action_names)}',
            'relative actions': spell([names[i] for i in relative]) or 'none',
            'chunk': f'{c.chunk_size} actions, {_rate(self.fps)}, {self.n_action_steps} executed '
            'by its makers',
            'real-time chunking': f'trained, up to {self.most_given} actions given'
            if self.most_given
            else 'guided, as it was not trained for it',
            'views': spell(c.views),
            'masked views': spell(self.empty_views) or 'none',
            'renamed views': spell([f'{a} -> {b}' for a, b in self.renames.items()]) or 'none',
            'images': f'{c.vision.image_size} x {c.vision.image_size}, resized: {p.resize.name}',
            'prompt': f'{state}, at most {c.max_text} tokens of {self.tokenizer_path.name}',
            'joint conversion': p.conversion.name,
            'words': 'not said' if self.says is None else spell(self.says) or 'none: it is mute',
        }
        width = max(map(len, facts))
        return [f'{name:<{width}}  {value}' for name, value in facts.items()]


def _named(names: tuple[str, ...] | None) -> str:
    return spell(names) if names else 'names are not said'


def _rate(fps: float | None) -> str:
    return f'{fps:g} a second' if fps else 'at a rate that is not said'
