"""Prefill, a frame into a row: images to tokens, then tokens through the backbone.

Present views come first, then the prompt, packed without gaps. Which token lies where is an index,
so one graph serves every pattern of absent views and every length up to its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from embodied_kv.config import ModelConfig
from embodied_kv.engine import buckets
from embodied_kv.engine.compression import Compression, Decisions
from embodied_kv.engine.graphs import Graphs, Kind
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.joint import JointPrefix
from embodied_kv.kv.scored import ScoredPrefixWrite
from embodied_kv.kv.views import KvView, PrefixWrite
from embodied_kv.model.policy import Policy
from embodied_kv.runtime.buffer import Buffer
from embodied_kv.types import Observation

LENGTHS = 16  # buckets of a prefix's length
COMPILED = (0.5, 0.625, 0.75, 1.0)  # of the longest: those that are compiled
ALIGNED = 8  # tokens, that a bucket's length is a multiple of


class BadObservation(ValueError):
    """No prefix can be made of it, whatever else is in the batch. robot: whose it is."""

    def __init__(self, observation: Observation, fault: str) -> None:
        super().__init__(f'frame {observation.sequence} of robot {observation.robot!r} {fault}')
        self.robot = observation.robot


@dataclass(frozen=True)
class Written:
    """A prefix in its row. length: valid tokens. queries: how many scored it."""

    length: int
    queries: int


class Prefiller:
    """Writes observations into reserved rows. robots: how many of them at most at once."""

    def __init__(
        self,
        policy: Policy,
        prefixes: Arena,
        robots: int,
        graphs: Graphs,
        compression: Compression,
    ) -> None:
        c, model = policy.config, policy.model
        self._compression = compression
        self._policy, self._prefixes, self._graphs = policy, prefixes, graphs
        self._robots = buckets.doubling(robots)
        step = -(-c.prefix_tokens // (LENGTHS * ALIGNED)) * ALIGNED
        whole = buckets.multiples(c.prefix_tokens, step)
        self._lengths = (*whole[:-1], c.prefix_tokens)
        self._compiled_lengths = {
            buckets.smallest(self._lengths, math.ceil(share * c.prefix_tokens), '', '')
            for share in (COMPILED if graphs.compiles else ())
        }
        size, images = c.vision.image_size, robots * len(c.views)
        like = dict(dtype=model.dtype, device=model.device)
        self._images = torch.zeros(images, 3, size, size, **like)
        self._image_tokens = torch.zeros(images * c.vision.tokens, c.backbone.width, **like)
        index = dict(dtype=torch.int64, device=model.device)
        self._text = torch.zeros(robots, c.max_text, **index)
        self._source = torch.zeros(robots * c.prefix_tokens, **index)
        self._views: dict[tuple[Kind, int, int], PrefixWrite] = {}
        self._joints: dict[int, JointPrefix] = {}  # by tokens
        for count in range(1, images + 1):
            self._capture_encode_images(count)
        for slots in self._robots:
            for tokens in self._lengths:
                self._capture_prefill(Kind.PREFILL, PrefixWrite(prefixes, slots, tokens))
                if compression.is_scored:
                    scored = compression.scores, compression.max_queries
                    view = ScoredPrefixWrite(prefixes, slots, tokens, *scored)
                    self._capture_prefill(Kind.SCORED_PREFILL, view)

    def _capture_encode_images(self, count: int) -> None:
        model, images = self._policy.model, self._images[:count]
        encoded = self._image_tokens[: count * self._policy.config.vision.tokens]

        def encode() -> None:
            encoded.copy_(model.embed_images(images).flatten(0, 1))

        self._graphs.capture(
            Kind.ENCODE_IMAGES,
            encode,
            [Buffer('image_tokens', encoded)],
            [Buffer('images', images)],
            rows=count,
        )
        if count == len(self._policy.config.views):
            writes, reads = [Buffer('image_tokens', encoded)], [Buffer('images', images)]
            self._graphs.compile(Kind.ENCODE_IMAGES, encode, writes, reads, rows=count)

    def _capture_prefill(self, kind: Kind, view: PrefixWrite) -> None:
        model, slots, tokens = self._policy.model, view.slots, view.tokens
        encoded, text = self._image_tokens[: self._text_begins(slots)], self._text[:slots]
        source = self._source[: slots * tokens].view(slots, tokens)

        def prefill(cache: KvView) -> None:
            packed = torch.cat([encoded, model.embed_tokens(text).flatten(0, 1)])
            model.prefill(packed[source], cache)

        inputs = dict(image_tokens=encoded, text=text, source=source)
        reads = [*(Buffer(name, tensor) for name, tensor in inputs.items()), *view.buffers]
        size = dict(rows=slots, tokens=tokens)
        writes = [*self._prefixes.buffers('prefixes'), *self._compression.scores.buffers]
        self._graphs.capture(kind, partial(prefill, view), writes, reads, **size)
        self._views[kind, slots, tokens] = view
        if kind is Kind.PREFILL and slots == 1 and tokens in self._compiled_lengths:
            joint = self._joints[tokens] = view.joint
            work = partial(prefill, joint)
            self._graphs.compile(kind, work, joint.own.buffers, reads, **size)

    def _text_begins(self, slots: int) -> int:
        """Where text lies behind the image tokens of so many robots, before it is packed."""
        c = self._policy.config
        return slots * len(c.views) * c.vision.tokens

    def check(self, observations: Sequence[Observation]) -> None:
        """Raises ValueError for a bad batch, BadObservation for its first bad observation."""
        if not observations:
            raise ValueError('there is no observation to prefill')
        self._slots(len(observations))
        robots = set()
        for o in observations:
            if fault := _fault(o, self._policy.config):
                raise BadObservation(o, fault)
            if o.robot in robots:
                raise BadObservation(o, 'is its second in the batch, but a robot may not be twice')
            robots.add(o.robot)

    def run(
        self, observations: Sequence[Observation], rows: Sequence[int], decided: Decisions
    ) -> list[Written]:
        """Each checked observation into its row, in one batch. Raises ValueError."""
        slots = self._slots(len(observations))
        images = self._policy.images([image for o in observations for image in o.images])
        self._images[: len(images)].copy_(images)
        prompts = [self._policy.prompt_ids(o.instruction, o.state) for o in observations]
        for text, ids in zip(self._text, prompts, strict=False):
            text[: len(ids)] = torch.tensor(ids)
        views = [sum(view is not None for view in o.images) for o in observations]
        sources = self._sources(views, [len(ids) for ids in prompts], slots)
        lengths = [len(source) for source in sources]
        kind = Kind.SCORED_PREFILL if decided.scores_frame else Kind.PREFILL
        tokens = self._tokens(kind, slots, max(lengths))
        packed = torch.zeros(slots, tokens, dtype=torch.int64)
        for slot, source in enumerate(sources):
            packed[slot, : len(source)] = source
        self._source[: packed.numel()].copy_(packed.flatten())
        view = self._views[kind, slots, tokens]
        queries = [range(0)] * len(rows)
        if kind is Kind.SCORED_PREFILL:
            queries = [
                self._compression.prompt_queries(length, len(ids))
                for length, ids in zip(lengths, prompts, strict=True)
            ]
            view.bind_queries(queries)
        view.bind(rows, lengths)
        self._encode(len(images))
        compiled = self._graphs.compiled(kind, rows=slots, tokens=tokens)
        if compiled is not None:
            compiled.replay()
            self._joints[tokens].keep()
        else:
            self._graphs.get(kind, rows=slots, tokens=tokens).replay()
        return [Written(n, len(own)) for n, own in zip(lengths, queries, strict=True)]

    def _encode(self, images: int) -> None:
        compiled = self._graphs.compiled(Kind.ENCODE_IMAGES, rows=images)
        (compiled or self._graphs.get(Kind.ENCODE_IMAGES, rows=images)).replay()

    def _tokens(self, kind: Kind, slots: int, longest: int) -> int:
        """The bucket of so many tokens; a compiled one where there is one. Raises ValueError."""
        for tokens in sorted(self._compiled_lengths):
            size = dict(rows=slots, tokens=tokens)
            if tokens >= longest and self._graphs.compiled(kind, **size) is not None:
                return tokens
        return buckets.smallest(self._lengths, longest, 'tokens', 'shorten the prompt')

    def _sources(self, views: Sequence[int], texts: Sequence[int], slots: int) -> list[Tensor]:
        """Of each slot, where its tokens lie before they are packed.

        views: present ones of each; texts: tokens of its prompt.
        """
        c, begins, image = self._policy.config, self._text_begins(slots), 0
        sources = []
        for slot, (present, text) in enumerate(zip(views, texts, strict=True)):
            tokens = torch.arange(image * c.vision.tokens, (image + present) * c.vision.tokens)
            image += present
            sources.append(torch.cat([tokens, begins + slot * c.max_text + torch.arange(text)]))
        return sources

    def _slots(self, frames: int) -> int:
        """Of the batch that so many frames go into. Raises ValueError if there are too many."""
        return buckets.smallest(
            self._robots, frames, 'frames', 'raise engine.robots, or prefill fewer at once'
        )


def _fault(o: Observation, c: ModelConfig) -> str:
    """Why no prefix can be made of an observation; '' if one can."""
    if len(o.images) != len(c.views):
        return (
            f'has {len(o.images)} images for the {len(c.views)} views {", ".join(c.views)}: give '
            'None for one that is missing'
        )
    present = [(view, i) for view, i in zip(c.views, o.images, strict=True) if i is not None]
    if not present:
        return f'has no image: at least one of {", ".join(c.views)} is needed'
    for view, image in present:
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
            return (
                f'has an image of view {view} of {list(image.shape)} {image.dtype}: it must be '
                'uint8 [height, width, 3]'
            )
    if np.shape(o.state) != (c.state_dim,):
        return f'has a state of shape {np.shape(o.state)}, not {(c.state_dim,)}'
    return '' if np.isfinite(o.state).all() else 'has a state that is not finite'
