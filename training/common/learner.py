"""Weights in training: a step of AdamW, the moving average that is shipped, and the saved state.

This module knows parameters and a recipe. It knows neither losses nor the source of lessons.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from embodied_kv import storage
from embodied_kv.model.weights import write_weights
from training.common.recipe import Recipe

TRAINED = 'embodied_kv.trained'  # key of the card: training history of the weights
ADAM = ('step', 'exp_avg', 'exp_avg_sq')  # state of AdamW for an updated parameter


class Learner:
    """The optimiser, the averaged weights and the state of a training.

    step: next step of the recipe. average: averaged weights, by the names of the model's
    parameters. each: size of a step, for the card. facts: further properties that must be equal
    when a run is continued.
    """

    each = ''

    def __init__(self, module: nn.Module, model: nn.Module, recipe: Recipe) -> None:
        """Create the optimiser and the averages.

        module: all parameters that learn. model: the part of them that is shipped.
        """
        self.recipe, self.step = recipe, 0
        self.facts: dict[str, str] = {}
        self._module, self._model = module, model
        self._parameters = list(module.parameters())
        groups = [
            {'params': [p for p in self._parameters if p.ndim > 1], 'weight_decay': recipe.decay},
            {'params': [p for p in self._parameters if p.ndim <= 1], 'weight_decay': 0.0},
        ]
        self._optimiser = torch.optim.AdamW(groups, recipe.rate, (0.9, 0.98), fused=True)
        self.average = {name: p.detach().clone() for name, p in model.named_parameters()}

    def descend(self, loss: Tensor) -> None:
        """Take one step down a loss. Raises ValueError if the gradient is not finite."""
        self._optimiser.zero_grad()
        loss.backward()
        self.follow()

    def follow(self) -> None:
        """Take one step along the gradients of the parameters. Raises ValueError as `descend`."""
        for group in self._optimiser.param_groups:
            group['lr'] = self.recipe.learning_rate(self.step)
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self.recipe.clip)
        if not torch.isfinite(norm):
            raise ValueError(f'the gradient of step {self.step} is not finite; lower --rate')
        self._optimiser.step()
        with torch.no_grad():
            live = dict(self._model.named_parameters())
            averages, now = list(self.average.values()), [live[n] for n in self.average]
            torch._foreach_lerp_(averages, now, 1 - self.recipe.averaging(self.step))
        self.step += 1

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Give the model the averaged weights inside the context."""
        live = {name: p.detach().clone() for name, p in self._model.named_parameters()}
        self._model.load_state_dict(self.average, strict=False)
        try:
            yield
        finally:
            self._model.load_state_dict(live, strict=False)

    def card(self, data: str, use: str, past: str = '', more: str = '') -> dict[str, str]:
        """Return the metadata of the shipped weights.

        data: what they were trained on. use: intended use. past, more: training before this run,
        and further text about this run.
        """
        return {
            'embodied_kv.recipe': repr(self.recipe),
            TRAINED: f'{past}{self.step} steps{self.each}, EMA weights{more}',
            'embodied_kv.data': data,
            'embodied_kv.use': use,
            'license': 'Apache-2.0',
        }

    def store(self, path: Path) -> None:
        """Write everything that the next step depends on as safetensors, atomically."""
        tensors = {f'average.{name}': value for name, value in self.average.items()}
        for name, p in self._module.named_parameters():
            state = self._optimiser.state[p]
            tensors |= {f'{part}.{name}': state[part] for part in ADAM if state}
            tensors[f'live.{name}'] = p.detach()
        about = {'step': str(self.step), 'recipe': json.dumps(asdict(self.recipe)), **self.facts}
        with storage.replaced(path) as new:
            write_weights(new, tensors, about)

    @torch.no_grad()
    def restore(self, path: Path) -> None:
        """Continue from a file of `store`.

        Raises ValueError if the file does not fit; the message has the reason.
        """
        try:
            with safe_open(path, 'pt') as file:
                about = file.metadata() or {}
                self.check(path, json.loads(about['recipe']))
                if odd := [name for name, fact in self.facts.items() if about.get(name) != fact]:
                    raise ValueError(
                        f'{path} was made with another {odd[0]}: give the same, or another --out'
                    )
                for name, p in self._module.named_parameters():
                    p.copy_(file.get_tensor(f'live.{name}'))
                    if f'step.{name}' in file.keys():
                        self._optimiser.state[p] = {
                            part: file.get_tensor(f'{part}.{name}').to(p.device) for part in ADAM
                        }
                for name, value in self.average.items():
                    value.copy_(file.get_tensor(f'average.{name}'))
                self.step = int(about['step'])
        except (SafetensorError, KeyError, RuntimeError, OSError) as error:
            raise ValueError(f'{path} is not the state of such a run: {error}') from error

    def check(self, path: Path, recipe: dict[str, object]) -> None:
        """Raise ValueError if a run of another recipe left the file and cannot be continued."""
        here = asdict(self.recipe)
        if differ := [name for name, value in here.items() if recipe.get(name) != value]:
            raise ValueError(
                f'{path} was made by another recipe: {", ".join(differ)}; '
                'give the same options, or another --out'
            )
