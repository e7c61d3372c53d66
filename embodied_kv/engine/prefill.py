"""A frame into a row: images to tokens, then tokens through the backbone.

Present views come first, then the prompt, packed without gaps. Which token lies where is an index,
so one graph serves every pattern of absent views and every length up to its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from embodied_kv.engine import buckets
from embodied_kv.engine.graphs import Graphs, Kind
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.views import PrefixWrite
from embodied_kv.model.policy import Policy
from embodied_kv.runtime.buffer import Buffer
from embodied_kv.types import Observation

LENGTHS = 16  # buckets of a prefix's length
ALIGNED = 8  # tokens, that a bucket's length is a multiple of


class Prefiller:
    """Writes observations into reserved rows. robots: how many of them at most at once."""

    def __init__(self, policy: Policy, prefixes: Arena, robots: int, graphs: Graphs) -> None:
        c, model = policy.config, policy.model
        self._policy, self._prefixes, self._graphs = policy, prefixes, graphs
        self._robots = buckets.doubling(robots)
        step = -(-c.prefix_tokens // (LENGTHS * ALIGNED)) * ALIGNED
        whole = buckets.multiples(c.prefix_tokens, step)
        self._lengths = (*whole[:-1], c.prefix_tokens)
        size, images = c.vision.image_size, robots * len(c.views)
        like = dict(dtype=model.dtype, device=model.device)
        self._images = torch.zeros(images, 3, size, size, **like)
        self._seen = torch.zeros(images * c.vision.tokens, c.backbone.width, **like)
        index = dict(dtype=torch.int64, device=model.device)
        self._text = torch.zeros(robots, c.max_text, **index)
        self._source = torch.zeros(robots * c.prefix_tokens, **index)
        self._views: dict[tuple[int, int], PrefixWrite] = {}
        for count in range(1, images + 1):
            self._capture_see(count)
        for slots in self._robots:
            for tokens in self._lengths:
                self._capture_prefill(slots, tokens)

    def _capture_see(self, count: int) -> None:
        model, images = self._policy.model, self._images[:count]
        seen = self._seen[: count * self._policy.config.vision.tokens]

        def see() -> None:
            seen.copy_(model.embed_images(images).flatten(0, 1))

        self._graphs.capture(
            Kind.SEE, see, [Buffer('seen', seen)], [Buffer('images', images)], rows=count
        )

    def _capture_prefill(self, slots: int, tokens: int) -> None:
        model = self._policy.model
        view = PrefixWrite(self._prefixes, slots, tokens)
        seen, text = self._seen[: self._text_begins(slots)], self._text[:slots]
        source = self._source[: slots * tokens].view(slots, tokens)

        def prefill() -> None:
            packed = torch.cat([seen, model.embed_tokens(text).flatten(0, 1)])
            model.prefill(packed[source], view)

        inputs = dict(seen=seen, text=text, source=source)
        self._graphs.capture(
            Kind.PREFILL,
            prefill,
            self._prefixes.buffers('prefixes'),
            [*(Buffer(name, tensor) for name, tensor in inputs.items()), *view.buffers],
            rows=slots,
            tail=tokens,
        )
        self._views[slots, tokens] = view

    def _text_begins(self, slots: int) -> int:
        """Where text lies behind the image tokens of so many robots, before it is packed."""
        c = self._policy.config
        return slots * len(c.views) * c.vision.tokens

    def run(self, observations: Sequence[Observation], rows: Sequence[int]) -> list[int]:
        """Each observation into its row -> valid tokens of each. Raises ValueError."""
        policy, c = self._policy, self._policy.config
        slots = self.slots(len(observations))
        images = policy.images([image for o in observations for image in o.images])
        self._images[: len(images)].copy_(images)
        text, image = self._text_begins(slots), 0
        sources = []
        for slot, o in enumerate(observations):
            ids = torch.tensor(policy.prompt_ids(o.instruction, o.state))
            self._text[slot, : len(ids)] = ids
            first, image = image, image + sum(view is not None for view in o.images)
            views = torch.arange(first * c.vision.tokens, image * c.vision.tokens)
            sources.append(torch.cat([views, text + slot * c.max_text + torch.arange(len(ids))]))
        lengths = [len(source) for source in sources]
        tokens = buckets.smallest(self._lengths, max(lengths), 'tokens', 'shorten the prompt')
        packed = torch.zeros(slots, tokens, dtype=torch.int64)
        for slot, source in enumerate(sources):
            packed[slot, : len(source)] = source
        self._source[: packed.numel()].copy_(packed.flatten())
        self._views[slots, tokens].bind(rows, lengths)
        self._graphs.get(Kind.SEE, rows=len(images)).replay()
        self._graphs.get(Kind.PREFILL, rows=slots, tail=tokens).replay()
        return lengths

    def slots(self, frames: int) -> int:
        """Of the batch that so many frames go into. Raises ValueError if there are too many."""
        return buckets.smallest(
            self._robots, frames, 'frames', 'raise engine.robots, or prefill fewer at once'
        )
