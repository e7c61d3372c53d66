"""The description of a checkpoint, before its weights are loaded.

`own`, `lerobot` and `openpi` read the files and return it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from embodied_kv.config import ModelConfig
from embodied_kv.model.checkpoints.facts import spell
from embodied_kv.model.pi05 import Pi05
from embodied_kv.model.policy import Policy
from embodied_kv.model.processing.processing import Processing
from embodied_kv.model.tokenizer import Tokenizer
from embodied_kv.model.weights import CheckpointError, WeightSource, fill


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A described checkpoint. None stands for what neither files nor contract state.

    Args:
        kind: 'own', 'lerobot' or 'openpi'.
        path: The folder.
        config: Dims of state and action of the robot; `views` with a camera, in the order of the
            network; `dtype` in which the project serves.
        slots: All views of the network, in order.
        tokenizer_path: A tokenizer.json or a SentencePiece `.model`.
        n_action_steps: Actions of a chunk that the authors execute.
        fps: Rate of the actions (1/s).
        euler_steps: Steps for a chunk that the authors use.
        max_action_prefix: Longest action prefix that the policy was trained with; 0 for none.
        max_memory_rows: Most memory rows that the policy was trained with; 0 for none.
        says: Prompts that the policy was trained to answer; () for none.
        renames: Name of a view in the training data -> its name in the checkpoint.
        padded: Dims of the files, for 'state' and 'action' where the robot has fewer.
        source: 'owner/name@commit' of the Hugging Face hub; '' for a folder.
    """

    kind: str
    path: Path
    config: ModelConfig
    processing: Processing
    weights: WeightSource
    tokenizer_path: Path
    slots: tuple[str, ...]
    n_action_steps: int
    fps: float | None = None
    state_names: tuple[str, ...] | None = None
    action_names: tuple[str, ...] | None = None
    euler_steps: int = 10
    max_action_prefix: int = 0
    max_memory_rows: int = 0
    says: tuple[str, ...] | None = None
    renames: Mapping[str, str] = field(default_factory=dict)
    padded: Mapping[str, int] = field(default_factory=dict)
    source: str = ''

    @property
    def empty_views(self) -> tuple[str, ...]:
        """Views of the network without a camera, which are masked in every frame."""
        return tuple(slot for slot in self.slots if slot not in self.config.views)

    def padding(self, part: str) -> str:
        """Return a note if the files have more dims of a part than the robot, else ''."""
        return f' of {self.padded[part]} in its files' if part in self.padded else ''

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer. Raises CheckpointError where it is missing or unsuitable."""
        try:
            tokenizer = Tokenizer.load(self.tokenizer_path, limit=self.config.backbone.vocab_size)
        except ValueError as error:
            raise CheckpointError(f'{self.path}: {error}') from error
        is_json = self.kind == 'lerobot' and self.tokenizer_path.suffix == '.json'
        wanted = [tokenizer.bos] if self.processing.prompt.begins else []
        if is_json and tokenizer.frame != wanted:
            raise CheckpointError(
                f'{self.tokenizer_path} must add the ids {wanted} to a text, as that of the '
                f'training did (got {tokenizer.frame}); copy that tokenizer'
            )
        return tokenizer

    def fill(self, model: Pi05) -> None:
        """Copy the weights into a model of these dimensions. Raises CheckpointError."""
        fill(model, self.weights, model.config)

    def load(self, device: str = 'cpu', dtype: str | None = None) -> Policy:
        """Return the policy. dtype: None for that of the config. Raises CheckpointError."""
        config = replace(self.config, dtype=dtype or self.config.dtype)
        tokenizer, model = self.tokenizer(), Pi05.empty(config, device)
        self.fill(model)
        return Policy(
            config,
            model,
            tokenizer,
            self.processing,
            self.max_action_prefix,
            self.says,
            self.source,
            sums_times=self.kind == 'openpi',
            max_memory_rows=self.max_memory_rows,
        )

    def lines(self) -> list[str]:
        """Return the description for users, one fact per line."""
        c, p = self.config, self.processing
        n = p.normalizer
        relative = [i for i, offset in enumerate(n.relative) if offset]
        names = self.action_names or range(len(n.relative))
        rate = f'{self.fps:g} per second' if self.fps else 'rate unknown'
        state = 'with the state' if p.prompt.with_state else 'without the state'
        state += ', which has a token of its own' if c.state_width else ''
        facts = {
            'kind': f'{self.kind}, {self.source or self.weights.path}',
            'state': f'{c.state_dim} dims{self.padding("state")}, {n.state_scale.mode}: '
            f'{_named(self.state_names)}',
            'action': f'{c.action_dim} dims{self.padding("action")}, {n.action_scale.mode}: '
            f'{_named(self.action_names)}',
            'relative actions': spell([names[i] for i in relative]) or 'none',
            'chunk': f'{c.chunk_size} actions, {rate}, {self.n_action_steps} executed '
            'by its authors',
            'Euler steps': f'{self.euler_steps} by its authors; the engine takes '
            'engine.euler_steps',
            'real-time chunking': f'trained, action prefix up to {self.max_action_prefix}'
            if self.max_action_prefix
            else 'guided, because the policy was not trained for it',
            'memory rows': f'at most {self.max_memory_rows}'
            if self.max_memory_rows
            else 'none, because the policy was not trained with any',
            'views': spell(c.views),
            'masked views': spell(self.empty_views) or 'none',
            'renamed views': spell([f'{a} -> {b}' for a, b in self.renames.items()]) or 'none',
            'images': f'{c.vision.image_size} x {c.vision.image_size}, resized: {p.resize.name}',
            'prompt': f'{state}, at most {c.max_text} tokens of {self.tokenizer_path.name}',
            'joint conversion': p.conversion.name,
            'language': 'unknown' if self.says is None else spell(self.says) or 'none (mute)',
        }
        width = max(map(len, facts))
        return [f'{name:<{width}}  {value}' for name, value in facts.items()]


def _named(names: tuple[str, ...] | None) -> str:
    return spell(names) if names else 'names unknown'
