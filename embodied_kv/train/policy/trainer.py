"""Weights, optimiser and moving average of a run: one step, one judgement, one file.

Knows the objective and AdamW. Does not know where batches come from.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from embodied_kv.config import ModelConfig
from embodied_kv.model.checkpoint import CONFIG, load_policy_parts, read_config
from embodied_kv.model.policy import Policy, empty_model
from embodied_kv.model.preprocess import Normalizer
from embodied_kv.model.tokenizer import Tokenizer
from embodied_kv.model.weights import Weights
from embodied_kv.train.common.initial import grow, init_for_training
from embodied_kv.train.common.objective import Batch, Objective
from embodied_kv.train.policy.recipe import Recipe

ADAM = ('step', 'exp_avg', 'exp_avg_sq')  # what AdamW keeps of a parameter that it has moved


class Trainer:
    """step: of the recipe, the next one to do. Weights are float32; products run in bfloat16.

    shards: parts of a batch that are learnt side by side, each on a thread of its own. On a CPU
    one shard a core beats one batch on all cores, where every operation waits for the slowest.
    """

    def __init__(
        self,
        config: ModelConfig,
        recipe: Recipe,
        colours: int,
        shapes: int,
        device: str = 'cpu',
        shards: int = 1,
    ) -> None:
        if recipe.batch % shards:
            raise ValueError(f'a batch of {recipe.batch} does not divide into {shards} shards')
        self._pool, self._shards = ThreadPoolExecutor(shards), shards
        self.recipe, self.step, self._device = recipe, 0, device
        torch.manual_seed(recipe.seed)
        model = empty_model(config, device)
        init_for_training(model, recipe.seed)
        self.objective = Objective(model, colours, shapes).to(device)
        self._parameters = parameters = list(self.objective.parameters())
        groups = [
            {'params': [p for p in parameters if p.ndim > 1], 'weight_decay': recipe.decay},
            {'params': [p for p in parameters if p.ndim <= 1], 'weight_decay': 0.0},
        ]
        self._optimiser = torch.optim.AdamW(groups, recipe.rate, (0.9, 0.98), fused=True)
        self._average = {name: p.detach().clone() for name, p in model.named_parameters()}

    def adopt(self, path: Path) -> tuple[Tokenizer, Normalizer]:
        """Starts from the weights of a policy; returns what came with it. Raises ValueError.

        A policy that sees smaller images, or merges more patches, grows (`initial.grow`).
        """
        model = self.objective.model
        config = there = model.config
        if CONFIG in Weights(path).metadata:
            there = replace(read_config(path), dtype=config.dtype)
        if there.vision == config.vision:
            parts = load_policy_parts(path, model, config)
        else:
            small = Policy.load(path, there, self._device)
            grow(small.model, model)
            parts = small.tokenizer, small.normalizer
        for name, p in model.named_parameters():
            self._average[name].copy_(p.detach())
        return parts

    def compile(self) -> None:
        """Compile the objective. Raises ValueError with several shards: it is not thread-safe."""
        if self._shards > 1:
            raise ValueError('what is compiled learns on one thread: drop --compile or --threads')
        self.objective.losses = torch.compile(self.objective.losses)

    def learn(self, batch: Batch) -> dict[str, float]:
        """One step of the recipe; its losses and metrics."""
        recipe = self.recipe
        for group in self._optimiser.param_groups:
            group['lr'] = recipe.learning_rate(self.step)
        shards = batch.split(self._shards)
        parts = list(self._pool.map(self._learn_shard, range(self._shards), shards))
        for i, p in enumerate(self._parameters):
            gradients = [g[i] for g, _ in parts if g[i] is not None]
            p.grad = torch.stack(gradients).mean(0) if gradients else None
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, recipe.clip)
        if not torch.isfinite(norm):
            raise ValueError(f'the gradient of step {self.step} is not finite; lower --rate')
        self._optimiser.step()
        with torch.no_grad():
            keep = recipe.averaging(self.step)
            live = dict(self.objective.model.named_parameters())
            torch._foreach_lerp_(
                list(self._average.values()), [live[n] for n in self._average], 1 - keep
            )
        self.step += 1
        return {
            name: sum(float(values[name]) for _, values in parts) / len(parts)
            for name in parts[0][1]
        }

    def _learn_shard(
        self, shard: int, batch: Batch
    ) -> tuple[tuple[Tensor | None, ...], dict[str, Tensor]]:
        """Gradients of the parameters, and the values, of one part of a batch."""
        weights = self.recipe.weights(self.step)
        values = self._values(batch, self.step, (self.recipe.seed, self.step, shard))
        loss = sum(weight * values[name] for name, weight in weights.items())
        gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        return gradients, {name: value.detach() for name, value in values.items()}

    def _values(self, batch: Batch, step: int, seed: tuple[int, ...]) -> dict[str, Tensor]:
        """Losses and metrics of the stage that a step belongs to; chance comes from the seed."""
        columns = {f.name: getattr(batch, f.name).to(self._device) for f in fields(batch)}
        state = np.random.SeedSequence(seed).generate_state(1, np.uint64)
        generator = torch.Generator(self._device).manual_seed(int(state[0]))
        weights = self.recipe.weights(step)
        with torch.autocast(torch.device(self._device).type, torch.bfloat16):
            return self.objective(Batch(**columns), weights, generator, self.recipe.draws)

    @torch.no_grad()
    def judge(self, batches: Iterable[Batch]) -> dict[str, float]:
        """Means over batches that are not learnt from, with the averaged weights."""
        live = {n: p.detach().clone() for n, p in self.objective.model.named_parameters()}
        sums: dict[str, list[float]] = defaultdict(list)
        self.objective.model.load_state_dict(self._average, strict=False)
        try:
            for i, batch in enumerate(batches):
                for name, value in self._values(batch, self.step - 1, (i,)).items():
                    sums[name].append(float(value))
        finally:
            self.objective.model.load_state_dict(live, strict=False)
        return {name: sum(values) / len(values) for name, values in sums.items()}

    def averages(self) -> dict[str, Tensor]:
        """The weights to ship, by the names of Pi05."""
        return self._average

    def store(self, path: Path) -> None:
        """Everything that the next step depends on, as safetensors: written, synced, renamed."""
        tensors = {f'objective.{n}': p.detach() for n, p in self.objective.named_parameters()}
        tensors |= {f'average.{n}': t for n, t in self._average.items()}
        for n, p in self.objective.named_parameters():
            state = self._optimiser.state[p]
            tensors |= {f'{part}.{n}': state[part] for part in ADAM if state}
        about = {'step': str(self.step), 'recipe': json.dumps(asdict(self.recipe))}
        temporary = path.with_name(f'.{path.name}.{os.getpid()}')
        save_file({n: t.contiguous().cpu() for n, t in tensors.items()}, temporary, about)
        with temporary.open('rb') as stream:
            os.fsync(stream.fileno())
        temporary.replace(path)

    @torch.no_grad()
    def restore(self, path: Path) -> None:
        """Go on from `store`. Raises ValueError that says how the file does not fit."""
        try:
            with safe_open(path, 'pt') as file:
                about = file.metadata() or {}
                recipe = json.loads(about['recipe'])
                if recipe != asdict(self.recipe):
                    differ = [k for k, v in asdict(self.recipe).items() if recipe.get(k) != v]
                    raise ValueError(
                        f'{path} was made by another recipe: {", ".join(differ)}; '
                        'give the same options, or another --out'
                    )
                for n, p in self.objective.named_parameters():
                    p.copy_(file.get_tensor(f'objective.{n}'))
                    if f'step.{n}' in file.keys():
                        self._optimiser.state[p] = {
                            part: file.get_tensor(f'{part}.{n}').to(p.device) for part in ADAM
                        }
                for n, t in self._average.items():
                    t.copy_(file.get_tensor(f'average.{n}'))
                self.step = int(about['step'])
        except (SafetensorError, KeyError, RuntimeError, OSError) as error:
            raise ValueError(f'{path} is not the state of such a run: {error}') from error
