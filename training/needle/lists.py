"""`python -m training.needle.lists`: teach the model of codes to list all codes of a page.

A question names all seven colours in a random order. The answer has each colour and its three
digits: 34 tokens, of which 21 are digits, each from another patch. Training starts from the
bundled needle weights and changes only the attention and the norms of the backbone. These are
saved with the tokenizer and without the rest; `load_lists` applies them to the needle weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import Tensor

from embodied_kv.config import NEEDLE, ModelConfig
from embodied_kv.model.checkpoints.open import open_checkpoint
from embodied_kv.model.checkpoints.own import TOKENIZER
from embodied_kv.model.policy import Policy
from embodied_kv.model.tokenizer import Tokenizer
from embodied_kv.model.weights import CheckpointError, Weights, write_weights
from training.common.command import run_for_minutes
from training.common.recipe import option
from training.needle.pages import Pages
from training.needle.reading import PageBatch, list_batch_of
from training.needle.trainer import NeedleRecipe, NeedleTrainer, train_by

ASSETS = Path(__file__).resolve().parents[2] / 'benchmarks/assets'
BASE, LISTS = ASSETS / 'needle', ASSETS / 'needle_lists'
ATTENTION = 'attention.safetensors'
LEARNT = ('.qkv.weight', '.o.weight', 'norm.weight')  # endings of names, in the backbone


@dataclass(frozen=True)
class ListRecipe(NeedleRecipe):
    """Numbers of a training. The metadata `help` of a field is its command-line help."""

    pages: tuple[int, ...] = option((24, 10, 4), 'of a step, by stage')
    steps: tuple[int, ...] = option((1500, 700, 600), 'of each stage')
    lists: int = option(3, 'questions about a page')


class ListTrainer(NeedleTrainer):
    """Trains a reader of lists. base: the model that it starts from."""

    recipe: ListRecipe

    def __init__(self, base: Policy, recipe: ListRecipe) -> None:
        super().__init__(base.config, recipe)
        model = self.reader.model
        model.load_state_dict(base.model.state_dict())
        self.reader.requires_grad_(False)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(is_learnt(name))
            self.average[name].copy_(parameter.detach())

    def _asked(self, pages: Pages, rng: np.random.Generator) -> PageBatch:
        words = self.tokenizer, self._prompt, self.config
        return list_batch_of(pages, self.recipe.lists, rng, *words)

    def keep(self, out: Path) -> None:
        """Save the averages of the weights that are learnt, and the tokenizer."""
        use = 'benchmarks of cache compression: with the needle weights it lists codes of pages'
        learnt = {n: value.bfloat16() for n, value in self.average.items() if is_learnt(n)}
        write_weights(out / ATTENTION, learnt, self.card(data='drawn pages', use=use))
        self.tokenizer.save(out / TOKENIZER)


def is_learnt(name: str) -> bool:
    """Return whether a parameter of this name is trained and saved."""
    return name.startswith('backbone.') and name.endswith(LEARNT)


def load_lists(folder: Path = LISTS, config: ModelConfig = NEEDLE) -> Policy:
    """Return the bundled needle policy with the weights and words of a folder of this training.

    Raises CheckpointError if it does not have exactly the weights that are learnt.
    """
    policy = open_checkpoint(BASE, config=config).load(dtype=config.dtype)
    weights = Weights(folder / ATTENTION)
    wanted: dict[str, Tensor] = {
        name: value for name, value in policy.model.state_dict().items() if is_learnt(name)
    }
    shapes = {name: list(value.shape) for name, value in wanted.items()}
    if {name: weights.shape(name) for name in weights.names} != shapes:
        raise CheckpointError(f'{weights.path} must have the weights {", ".join(sorted(wanted))}')
    for name, value in wanted.items():
        value.copy_(weights.read(name))
    return replace(policy, tokenizer=Tokenizer.load(folder / TOKENIZER))


def train_lists(out: Path, recipe: ListRecipe, minutes: float) -> None:
    """Run the recipe, or as much as the minutes allow; save the weights to `out`."""
    trainer = ListTrainer(open_checkpoint(BASE, config=NEEDLE).load(), recipe)
    train_by(trainer, out, minutes)


def main() -> None:
    """Parse the command line and train."""
    run_for_minutes('needle.lists', __doc__, ListRecipe, train_lists)


if __name__ == '__main__':
    main()
