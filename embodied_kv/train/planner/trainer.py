"""`python -m embodied_kv.train.planner`: trains the memory's planner on drawn households.

A prompt is a household's memory; many questions stand behind it, each seeing the prompt and
itself, and the loss is on their answers. Beside it the last token of each segment, and of each
name in a question, learns where its thread leads, through what has been read before. The prompts
grow from stage to stage. Everything of a step is a function of the recipe and the step's number; a
run goes on where the last one in its folder ended.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import defaultdict
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from embodied_kv.model.planner import Planner
from embodied_kv.model.planner_checkpoint import save_planner
from embodied_kv.model.planner_config import PLANNER_TABLETOP, PlannerConfig
from embodied_kv.sim.household import SEGMENTS
from embodied_kv.train.common.journal import Journal
from embodied_kv.train.planner.corpus import planner_tokenizer
from embodied_kv.train.planner.lessons import Lesson, Teacher, tokens_of
from embodied_kv.train.planner.reading import Pupil

ADAM = ('step', 'exp_avg', 'exp_avg_sq')  # what AdamW keeps of a parameter that it has moved
UNSEEN = 1_000_003  # seed of households that are not learnt from
JUDGED = 6  # lessons of them, of sizes from the fewest segments of a stage to the most


@dataclass(frozen=True)
class PlannerRecipe:
    """Metadata `help` is the command line's. Stage i takes `steps[i]` steps."""

    most: tuple[int, ...] = field(
        default=(16, 40, 80), metadata=dict(help='segments of a prompt, by stage')
    )
    steps: tuple[int, ...] = field(default=(800, 1000, 3600), metadata=dict(help='of each stage'))
    tokens: int = field(default=4000, metadata=dict(help='of a step, about'))
    rate: float = field(default=2e-3, metadata=dict(help='learning rate'))
    cool: float = field(default=0.25, metadata=dict(help='share of steps, at the end, to zero'))
    threads: float = field(default=0.5, metadata=dict(help='weight of the loss on threads'))
    middle: int = field(default=4, metadata=dict(help='layers after which they are known'))
    decay: float = field(default=0.02, metadata=dict(help='weight decay of matrices'))
    clip: float = field(default=1.0, metadata=dict(help='largest norm of a gradient'))
    average: float = field(default=0.99, metadata=dict(help='EMA of the weights that ship'))
    seed: int = field(default=0, metadata=dict(help='of weights and households'))

    def __post_init__(self) -> None:
        if len(self.most) != len(self.steps):
            raise ValueError('most and steps must say as many stages')

    @property
    def total(self) -> int:
        """Steps of all stages."""
        return sum(self.steps)

    def segments(self, step: int) -> tuple[int, int]:
        """Fewest and most of a prompt; beyond the last step, of the last stage."""
        stage = int(np.searchsorted(np.cumsum(self.steps), step, side='right'))
        return SEGMENTS[0], self.most[min(stage, len(self.most) - 1)]

    def learning_rate(self, step: int, warm: int = 100) -> float:
        """A linear start, a plateau, and a line to zero."""
        left = (self.total - step) / max(1.0, self.cool * self.total)
        return self.rate * min(1.0, (step + 1) / warm, max(0.0, left))


class PlannerTrainer:
    """step: of the recipe, the next one to do. Weights are float32; products run in bfloat16."""

    def __init__(self, config: PlannerConfig, recipe: PlannerRecipe) -> None:
        self.config, self.recipe, self.step = config, recipe, 0
        torch.manual_seed(recipe.seed)
        planner = Planner(config)
        _init(planner)
        self.pupil = Pupil(planner, recipe.middle)
        self.tokenizer = planner_tokenizer(config.backbone.vocab_size)
        self._teacher = Teacher(self.tokenizer)
        self._parameters = list(self.pupil.parameters())
        groups = [
            {'params': [p for p in self._parameters if p.ndim > 1], 'weight_decay': recipe.decay},
            {'params': [p for p in self._parameters if p.ndim <= 1], 'weight_decay': 0.0},
        ]
        self._optimiser = torch.optim.AdamW(groups, recipe.rate, (0.9, 0.98), fused=True)
        self.average = {name: p.detach().clone() for name, p in planner.named_parameters()}

    def lesson(self, step: int) -> Lesson:
        """Of a step: prompts of one size, as many as its tokens allow."""
        rng = np.random.default_rng((self.recipe.seed, step))
        fewest, most = self.recipe.segments(step)
        segments = int(rng.integers(fewest, most, endpoint=True))
        prompts = max(2, self.recipe.tokens // tokens_of(segments))
        return self._teacher.lesson(rng, prompts, segments)

    def learn(self, lesson: Lesson) -> dict[str, float]:
        """One step of the recipe. Raises ValueError if it went astray."""
        recipe = self.recipe
        for group in self._optimiser.param_groups:
            group['lr'] = recipe.learning_rate(self.step)
        values = self._values(lesson)
        self._optimiser.zero_grad()
        (values['answers'] + recipe.threads * values['threads']).backward()
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, recipe.clip)
        if not torch.isfinite(norm):
            raise ValueError(f'the gradient of step {self.step} is not finite; lower --rate')
        self._optimiser.step()
        keep = min(recipe.average, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            live = dict(self.pupil.planner.named_parameters())
            for name, average in self.average.items():
                average.lerp_(live[name], 1 - keep)
        self.step += 1
        return {name: value.float().mean().item() for name, value in values.items()}

    @torch.no_grad()
    def judge(self) -> dict[str, float]:
        """Shares of exact answers on unseen households of the stage at hand, by kind and hops.

        With the averaged weights.
        """
        planner, (fewest, most) = self.pupil.planner, self.recipe.segments(self.step - 1)
        live = {name: p.detach().clone() for name, p in planner.named_parameters()}
        planner.load_state_dict(self.average, strict=False)
        found = defaultdict(list)
        for i, segments in enumerate(np.linspace(fewest, most, JUDGED).astype(int).tolist()):
            lesson = self._teacher.lesson(np.random.default_rng((UNSEEN, i)), 6, segments)
            for (kind, hops), exact in zip(
                lesson.truths, self._values(lesson)['exact'].tolist(), strict=True
            ):
                found[f'{kind}_{hops}'].append(exact)
                found['exact'].append(exact)
        planner.load_state_dict(live, strict=False)
        return {name: float(np.mean(values)) for name, values in sorted(found.items())}

    def _values(self, lesson: Lesson) -> dict[str, Tensor]:
        with torch.autocast('cpu', torch.bfloat16):
            return self.pupil(lesson)

    def save(self, path: Path) -> None:
        """The averaged weights, as a planner."""
        save_planner(
            path,
            {name: value.bfloat16() for name, value in self.average.items()},
            self.config,
            self.tokenizer,
            card={
                'embodied_kv.recipe': repr(self.recipe),
                'embodied_kv.trained': f'{self.step} steps, EMA weights',
                'embodied_kv.data': 'drawn households',
                'embodied_kv.use': 'benchmarks of KV memory: it answers questions on drawn '
                'households, and plans their next steps; not for a real robot',
                'license': 'Apache-2.0',
            },
        )

    def store(self, path: Path) -> None:
        """Everything that the next step depends on: written, synced, renamed."""
        tensors = {f'average.{name}': value for name, value in self.average.items()}
        for name, p in self.pupil.named_parameters():
            state = self._optimiser.state[p]
            tensors |= {f'{part}.{name}': state[part] for part in ADAM if state}
            tensors[f'pupil.{name}'] = p.detach()
        temporary = path.with_name(f'.{path.name}.{os.getpid()}')
        save_file(tensors, temporary, {'step': str(self.step), 'seed': str(self.recipe.seed)})
        with temporary.open('rb') as stream:
            os.fsync(stream.fileno())
        temporary.replace(path)

    @torch.no_grad()
    def restore(self, path: Path) -> None:
        """Go on from `store`; later stages may be other ones. Raises ValueError."""
        try:
            with safe_open(path, 'pt') as file:
                about = file.metadata()
                if about['seed'] != str(self.recipe.seed):
                    raise ValueError(f'{path} has seed {about["seed"]}: give another --out')
                for name, p in self.pupil.named_parameters():
                    p.copy_(file.get_tensor(f'pupil.{name}'))
                    if f'step.{name}' in file.keys():
                        self._optimiser.state[p] = {
                            part: file.get_tensor(f'{part}.{name}') for part in ADAM
                        }
                for name, value in self.average.items():
                    value.copy_(file.get_tensor(f'average.{name}'))
                self.step = int(about['step'])
        except (SafetensorError, KeyError, RuntimeError, OSError) as error:
            raise ValueError(f'{path} is not the state of such a run: {error}') from error


@torch.no_grad()
def _init(planner: Planner) -> None:
    """Branches' last matrices smaller by sqrt(2 layers), and the logits at a tenth."""
    layers = planner.config.backbone.layers
    for name, p in planner.named_parameters():
        if p.ndim > 1:
            last = name.endswith(('.o.weight', '.down.weight'))
            p.normal_(0, (p.shape[1] * (2 * layers if last else 1)) ** -0.5)
    planner.backbone.norm.weight.fill_(-0.9)


def train(
    out: Path, recipe: PlannerRecipe, minutes: float, config: PlannerConfig = PLANNER_TABLETOP
) -> None:
    """The whole recipe, or as much as the minutes allow; what is learnt goes to `out`/planner."""
    torch.set_num_threads(1)
    began = time.monotonic()
    trainer = PlannerTrainer(config, recipe)
    out.mkdir(parents=True, exist_ok=True)
    state = out / 'state.safetensors'
    if state.exists():
        trainer.restore(state)
    journal = Journal(out / 'log.csv', trainer.step)
    while trainer.step < recipe.total:
        values = trainer.learn(trainer.lesson(trainer.step))
        if trainer.step % 20 == 0:
            journal.write(trainer.step, 'seen', values)
        over = time.monotonic() - began > 60 * minutes
        if trainer.step % 100 == 0 or trainer.step == recipe.total or over:
            spent = dict(wall=time.monotonic() - began, processor=time.process_time())
            figures = {f'{name}_min': seconds / 60 for name, seconds in spent.items()}
            journal.write(trainer.step, 'unseen', trainer.judge() | figures)
            print(journal.last(), flush=True)
            trainer.store(state)
            trainer.save(out / 'planner')
        if over:
            break
    journal.plot(out / 'curves.png')


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--out', type=Path, default=Path('out/train/planner'), help='folder')
    parser.add_argument('--minutes', type=float, default=600.0, help='that this may take')
    for f in fields(PlannerRecipe):
        many = isinstance(f.default, tuple)
        kind = type(f.default[0] if many else f.default)
        option = dict(type=kind, default=f.default, nargs='+' if many else None)
        parser.add_argument(f'--{f.name}', **option, **f.metadata)
    arguments = parser.parse_args()
    given = {f.name: getattr(arguments, f.name) for f in fields(PlannerRecipe)}
    try:
        recipe = PlannerRecipe(
            **{name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}
        )
        train(arguments.out, recipe, arguments.minutes)
    except ValueError as error:
        parser.exit(2, f'train.planner: {error}\n')


if __name__ == '__main__':
    main()
