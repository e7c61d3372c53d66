"""Does the model give the reference's numbers? `python -m embodied_kv.model.parity FILE...` says.

Rebuilds the model of each golden file, runs it as the engine does (only valid tokens, packed into
a row of the arena), scatters the result back to the slots that the reference pads, and prints the
largest absolute error of every recorded quantity, then a verdict. Exit status: 0 all within
tolerance, 1 one is not, 2 a file cannot be read or rebuilt.

Takes folders too, of a checkpoint with case.json beside it: raw observations go through the loader
and the policy that nodes use, and the actions that come out are compared in the robot's units.

Tolerances are those of a float32 implementation: looser, and a wrong epsilon would pass.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from embodied_kv.kv.arena import Arena
from embodied_kv.kv.views import PrefixWrite, SuffixRead
from embodied_kv.model.parity.golden import Golden
from embodied_kv.model.parity.quantity import Quantity, report
from embodied_kv.model.parity.recorded import Case, is_case
from embodied_kv.model.parity.replay import Replay
from embodied_kv.model.pi05 import Pi05
from embodied_kv.model.weights import CheckpointError

EMBEDDINGS, PREFIX, SUFFIX, RESULT, EXACT = 3e-5, 5e-5, 1.5e-4, 1e-4, 0.0


class Prefix:
    """The prefixes of all samples, packed, prefilled, and scattered back to the reference's slots.

    valid: bool [B, L], slots in the order of the views, then the text.
    """

    def __init__(self, golden: Golden, model: Pi05) -> None:
        c, i = golden.config, golden.inputs
        samples = len(i['images'])
        self.vision = {
            name: value.unflatten(0, (samples, len(c.views)))
            for name, value in model.vision.trace(i['images'].flatten(0, 1)).items()
        }  # each [B, views, tokens, width]
        views = self.vision['image_embeddings'].flatten(1, 2)
        self.embeddings = torch.cat([views, model.embed_tokens(i['tokens'])], dim=1)
        seen = i['image_masks'].repeat_interleave(c.vision.tokens, dim=1)
        self.valid = torch.cat([seen, i['token_mask']], dim=1)
        self.lengths = self.valid.sum(1).tolist()
        self.arena = Arena(
            layers=c.backbone.layers,
            rows=samples,
            kv_heads=c.backbone.kv_heads,
            max_tokens=c.prefix_tokens,
            head_dim=c.backbone.head_dim,
            dtype=torch.float32,
            device=golden.device,
        )
        packed = pad_sequence(
            [e[v] for e, v in zip(self.embeddings, self.valid, strict=True)], batch_first=True
        )
        view = PrefixWrite(self.arena, samples, packed.shape[1])
        view.bind(range(samples), self.lengths)
        self.hidden = model.prefill(packed, view, last_hidden=True)  # [B, longest, width]
        for row, length in enumerate(self.lengths):
            self.arena.set_length(row, length)

    def scatter(self, packed: Tensor, fill: float = 0) -> Tensor:
        """[B, longest or more, ...] in packed order -> [B, L, ...], `fill` in padded slots."""
        slots = packed.new_full((*self.valid.shape, *packed.shape[2:]), fill)
        for sample, length in enumerate(self.lengths):
            slots[sample, self.valid[sample]] = packed[sample, :length]
        return slots

    def quantities(self, model: Pi05) -> dict[str, Quantity]:
        valid, samples = self.valid, range(len(self.valid))
        steps = torch.arange(valid.shape[1], device=valid.device)
        packed_index = self.scatter(steps.expand_as(valid), fill=-1)
        last = [int(steps[mask].max()) for mask in valid]
        hidden = torch.stack([self.hidden[s, self.lengths[s] - 1] for s in samples])
        found = {
            'prefix_embeddings': Quantity(self.embeddings, EMBEDDINGS),
            'prefix_pad_mask': Quantity(valid, EXACT),
            # A padded slot repeats the position of the last valid one before it.
            'prefix_position_ids': Quantity(packed_index.cummax(1).values, EXACT),
            'prefix_attention_allowed': Quantity(valid[:, :, None] & valid[:, None], EXACT),
            'prefix_last_hidden': Quantity(self.scatter(self.hidden), PREFIX, valid),
            'last_token_index': Quantity(torch.tensor(last), EXACT),
            'last_token_logits': Quantity(model.backbone.logits(hidden), PREFIX),
        }
        for name, cache in (('k', self.arena.k), ('v', self.arena.v)):
            for layer, rows in enumerate(cache):  # rows [B, kv_heads, tokens, head_dim]
                value = self.scatter(rows.transpose(1, 2)).transpose(1, 2)
                where = valid[:, None].expand(value.shape[:3])
                found[f'prefix_{name}.{layer}'] = Quantity(value, PREFIX, where)
        names = {
            'patch_embeddings': 'vision_patch_embeddings',
            'last_hidden': 'vision_last_hidden',
        }
        for name, value in self.vision.items():
            for sample in samples:
                key = f'{names.get(name, name)}_sample{sample}'
                found[key] = Quantity(value[sample], EMBEDDINGS)
        return found


def suffix_quantities(golden: Golden, model: Pi05, prefix: Prefix) -> dict[str, Quantity]:
    """What the action expert makes: velocities on the recorded states, and its own trajectory.

    The recorded times are used, as random weights make a velocity sensitive to the last bit of t.
    """
    noise = golden.inputs['noise']
    samples, chunk = noise.shape[:2]
    times = golden.read('timesteps') if 'timesteps' in golden.expected else golden.times()
    cache = SuffixRead(prefix.arena, samples, chunk).bind(range(samples))
    rope = model.suffix_rope(cache.positions)
    tables = model.expert.modulation(times)

    trajectory = [noise]
    for table in tables:
        x = trajectory[-1]
        trajectory.append(x - model.velocity(x, table, cache, rope) / len(times))
    states = torch.stack(trajectory)
    given = golden.read('x_t') if 'x_t' in golden.expected else states
    if given.shape != states.shape:
        raise CheckpointError(f'x_t is {list(given.shape)}, expected {list(states.shape)}')
    embedded = [model.expert.embed(x) for x in given[:-1]]
    hidden = [model.expert(e, t, cache, rope) for e, t in zip(embedded, tables, strict=True)]
    velocity = [model.velocity(x, t, cache, rope) for x, t in zip(given[:-1], tables, strict=True)]
    condition = model.expert.conditioning(times)[:, None].expand(-1, samples, -1)
    seen = prefix.valid[:, None].expand(-1, chunk, -1)
    every = seen.new_ones(samples, chunk, chunk)

    found = {
        'suffix_position_ids': Quantity(cache.positions, EXACT),
        'suffix_attention_allowed': Quantity(torch.cat([seen, every], dim=2), EXACT),
        'timesteps': Quantity(golden.times(), 1e-6),
        'time_sincos': Quantity(model.expert.time_embedding(times), 1e-6),
        'actions': Quantity(states[-1], RESULT),
        'actions_unpadded': Quantity(states[-1][..., : golden.config.action_dim], RESULT),
    }
    by_step = {
        'adarms_cond': Quantity(condition, 1e-5),
        'suffix_embeddings': Quantity(torch.stack(embedded), EMBEDDINGS),
        'suffix_last_hidden': Quantity(torch.stack(hidden), SUFFIX),
        'x_t': Quantity(states, RESULT),
        'v_t': Quantity(torch.stack(velocity), SUFFIX),
    }
    for name in golden.expected:  # such as v_t_t0.5: the step whose time is 0.5
        base, _, time = name.rpartition('_t')
        if base in by_step and re.fullmatch(r'\d+\.\d+', time):
            distance, step = (times - float(time)).abs().min(0)
            if distance < 1e-4:
                whole = by_step[base]
                found[name] = Quantity(whole.value[step], whole.tolerance)
    return found | by_step


@torch.inference_mode()
def compare(path: str, device: str = 'cpu') -> bool:
    """Print a line for every recorded quantity, then the verdict; true if all are ok."""
    if is_case(path):
        return compare_case(path, device)
    golden = Golden(path, device)
    model = golden.model()
    prefix = Prefix(golden, model)
    known = prefix.quantities(model) | suffix_quantities(golden, model, prefix)
    return report(path, golden.expected, golden.read, known)


def compare_case(path: str, device: str = 'cpu') -> bool:
    """As `compare`: every record of a case, from raw pictures to robot actions."""
    case = Case(path)
    policy = case.checkpoint.load(device, dtype='float32')
    known, names = {}, []
    for record in case.records:
        found = Replay(case, policy, record).quantities()
        known |= {f'{record}.{name}': quantity for name, quantity in found.items()}
        names += [f'{record}.{name}' for name in case.expected(record)]
    return report(path, names, lambda name: case.read(*name.split('.', 1)), known)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog='python -m embodied_kv.model.parity',
        description='Compare the model with recorded numbers of a public reference.',
    )
    parser.add_argument('files', nargs='+', metavar='FILE', help='golden file, or a folder')
    parser.add_argument('--device', default='cpu', help='that computes: cpu or cuda')
    args, status = parser.parse_args(arguments), 0
    torch.backends.cudnn.allow_tf32 = False  # a convolution's float32 would have 10 bits
    for path in args.files:
        try:
            status = max(status, 0 if compare(path, args.device) else 1)
        except CheckpointError as error:
            print(f'{path}: cannot be compared: {error}', file=sys.stderr)
            status = 2
    return status
