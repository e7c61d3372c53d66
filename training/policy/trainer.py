"""The trainer of a policy: steps in shards, validation, and initial weights.

This module knows the objective, not the source of batches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from embodied_kv.config import ModelConfig
from embodied_kv.model.checkpoints.open import open_checkpoint
from embodied_kv.model.dtype import cpu_multiplies_bfloat16
from embodied_kv.model.pi05 import Pi05
from embodied_kv.model.processing.normalizer import Normalizer
from embodied_kv.model.tokenizer import Tokenizer
from training.common.batch import Batch
from training.common.initial import grow, init_for_training, retell
from training.common.learner import Learner
from training.common.objective import LOSSES, TABLE, Objective, Point
from training.policy.recipe import PolicyRecipe


class Trainer(Learner):
    """Trains a policy. step: next step of the recipe.

    Weights are float32; products run in bfloat16 where the device multiplies it natively. shards:
    parts of a batch that learn in parallel, each on its own thread. On a CPU one shard per core is
    faster than one batch on all cores, where every operation waits for the slowest core. losses:
    those of the recipe's that the data allows. space: of positions, as in `Objective`.
    """

    def __init__(
        self,
        config: ModelConfig,
        recipe: PolicyRecipe,
        colours: int,
        shapes: int,
        device: str = 'cpu',
        shards: int = 1,
        losses: Collection[str] = LOSSES,
        space: tuple[Point, Point] = TABLE,
    ) -> None:
        if recipe.batch % shards:
            raise ValueError(f'a batch of {recipe.batch} does not divide into {shards} shards')
        self._pool, self._shards = ThreadPoolExecutor(shards), shards
        self._device, self._losses = device, losses
        torch.manual_seed(recipe.seed)
        model = Pi05.empty(config, device)
        init_for_training(model, recipe.seed)
        self.objective = Objective(model, colours, shapes, space).to(device)
        super().__init__(self.objective, model, recipe)
        self.each = f' of {recipe.batch} samples'

    def adopt(self, path: Path, words: Tokenizer) -> Normalizer:
        """Start from the weights of a policy; return its statistics. Raises ValueError.

        A policy with smaller images, or a larger patch merge, is converted (`initial.grow`). The
        embeddings of a policy with another vocabulary are converted, too (`initial.retell`).
        """
        model = self.objective.model
        config, found = model.config, open_checkpoint(path)
        if found.config.vision == config.vision:
            found = open_checkpoint(path, config=config)
            found.fill(model)
        else:
            grow(found.load(self._device, config.dtype).model, model)
        retell(model.backbone.embed.weight, found.tokenizer(), words)
        for name, p in model.named_parameters():
            self.average[name].copy_(p.detach())
        return found.processing.normalizer

    def compile(self) -> None:
        """Compile the objective. Raises ValueError with several shards: it is not thread-safe."""
        if self._shards > 1:
            raise ValueError('what is compiled learns on one thread: drop --compile or --threads')
        self.objective.losses = torch.compile(self.objective.losses)

    def weights(self, step: int) -> dict[str, float]:
        """Return the weights of a step's losses, by name."""
        weights = self.recipe.weights(step)
        return {name: weight for name, weight in weights.items() if name in self._losses}

    def learn(self, batch: Batch) -> dict[str, float]:
        """Take one step of the recipe and return its losses and metrics."""
        shards = batch.split(self._shards)
        parts = list(self._pool.map(self._learn_shard, range(self._shards), shards))
        for i, p in enumerate(self._parameters):
            gradients = [g[i] for g, _ in parts if g[i] is not None]
            p.grad = torch.stack(gradients).mean(0) if gradients else None
        self.follow()
        return {
            name: sum(float(values[name]) for _, values in parts) / len(parts)
            for name in parts[0][1]
        }

    def _learn_shard(
        self, shard: int, batch: Batch
    ) -> tuple[tuple[Tensor | None, ...], dict[str, Tensor]]:
        """Return the gradients of the parameters, and the values, of one part of a batch."""
        weights = self.weights(self.step)
        values = self._values(batch, self.step, (self.recipe.seed, self.step, shard))
        loss = sum(weight * values[name] for name, weight in weights.items())
        gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        return gradients, {name: value.detach() for name, value in values.items()}

    def _values(self, batch: Batch, step: int, seed: tuple[int, ...]) -> dict[str, Tensor]:
        """Return losses and metrics of a step's stage; random numbers come from the seed."""
        columns = {name: column.to(self._device) for name, column in batch.columns().items()}
        state = np.random.SeedSequence(seed).generate_state(1, np.uint64)
        generator = torch.Generator(self._device).manual_seed(int(state[0]))
        weights = self.weights(step)
        kind = torch.device(self._device).type
        with torch.autocast(
            kind, torch.bfloat16, enabled=kind != 'cpu' or cpu_multiplies_bfloat16()
        ):
            return self.objective(Batch(**columns), weights, generator, self.recipe.draws)

    @torch.no_grad()
    def validate(self, batches: Iterable[Batch]) -> dict[str, float]:
        """Return means over held-out batches, with the averaged weights."""
        sums: dict[str, list[float]] = defaultdict(list)
        with self.averaged():
            for i, batch in enumerate(batches):
                for name, value in self._values(batch, self.step - 1, (i,)).items():
                    sums[name].append(float(value))
        return {name: sum(values) / len(values) for name, values in sums.items()}
