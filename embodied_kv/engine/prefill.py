"""Prefill: images to tokens, then tokens through the backbone into a row.

A prefix has the present views, then the prompt, packed without gaps, then the state token of a
model that has one. An index selects the tokens, so that one graph serves every pattern of absent
views and every length up to its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from embodied_kv.engine import shapes
from embodied_kv.engine.compression import Compression, Decisions
from embodied_kv.engine.shapes import Kind
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.scored import ScoredPrefixWrite
from embodied_kv.kv.views import PrefixAppend, PrefixWrite
from embodied_kv.model.policy import Policy
from embodied_kv.runtime.buffer import Buffer
from embodied_kv.runtime.graph_cache import GraphCache, Shape
from embodied_kv.runtime.inputs import StepInputs
from embodied_kv.text import is_text, shown
from embodied_kv.types import Guide, Observation

STATE_MOST = 1e6  # upper bound of a state's absolute values, in the policy's units


class BadObservationError(ValueError):
    """No prefix can be made of an observation, in any batch. robot: its robot."""

    def __init__(self, observation: Observation, fault: str) -> None:
        number = observation.sequence if _is_whole(observation.sequence) else '?'
        super().__init__(f'frame {number} of robot {shown(repr(observation.robot))} {fault}')
        self.robot = observation.robot


@dataclass(frozen=True)
class Written:
    """A prefix in its row. length: number of valid tokens. queries: number of scoring queries."""

    length: int
    queries: int


class Pixels:
    """The images of a step, as a graph reads them."""

    fits_compiled = True

    def __init__(self, inputs: StepInputs, count: int, size: int) -> None:
        self.inputs = inputs
        self.values = inputs.cut('pixels', count, size, size, 3).device

    @property
    def buffers(self) -> list[Buffer]:
        return [Buffer('pixels', self.values)]


class Prefiller:
    """Writes observations into reserved rows. robots: upper bound of the frames of a batch."""

    def __init__(
        self,
        policy: Policy,
        prefixes: Arena,
        robots: int,
        graphs: GraphCache,
        compression: Compression,
    ) -> None:
        c, model = policy.config, policy.model
        self._compression = compression
        self._policy, self._prefixes, self._graphs = policy, prefixes, graphs
        self._robots = shapes.doubling(robots)
        self._lengths = shapes.prefixes(c.prefix_tokens)
        size, images = c.vision.image_size, robots * len(c.views)
        queries = min(compression.max_queries, c.prefix_tokens)
        self._inputs = StepInputs(
            model.device,
            {
                **PrefixWrite.fields(prefixes, robots),
                **ScoredPrefixWrite.scoring_fields(robots, queries),
                **PrefixAppend.fields(prefixes, robots),
                'states': (robots * c.state_width, np.float32),
                'text': (robots * c.max_text, np.int64),
                'source': (robots * c.prefix_tokens, np.int64),
                'pixels': (images * size * size * 3, policy.processing.resize.dtype),
            },
        )
        self._pixels = self._inputs.cut('pixels', images, size, size, 3)
        self._text = self._inputs.cut('text', robots, c.max_text)
        self._states = self._inputs.cut('states', robots, c.state_width)
        shape = images * c.vision.tokens, c.backbone.width
        self._image_tokens = torch.zeros(shape, dtype=model.dtype, device=model.device)
        for count in range(1, images + 1):
            self._capture_encode_images(count)
        # Kind -> length -> the compiled length that it is padded to.
        self._fast: dict[Kind, dict[int, int]] = {Kind.PREFILL: {}, Kind.SCORED_PREFILL: {}}
        for slots in self._robots:
            if c.state_width:
                self._capture_append_state(slots)
            for tokens in self._lengths:
                view = PrefixWrite(prefixes, slots, tokens, self._inputs)
                self._capture(Kind.PREFILL, view)
                if compression.is_scored:
                    scored = compression.scores, compression.max_queries, self._inputs
                    view = ScoredPrefixWrite(prefixes, slots, tokens, *scored)
                    self._capture(Kind.SCORED_PREFILL, view)

    def _capture_encode_images(self, count: int) -> None:
        policy, c = self._policy, self._policy.config
        encoded = self._image_tokens[: count * c.vision.tokens]

        def encode(images: Pixels) -> None:
            pixels = policy.normalised(images.values)
            encoded.copy_(policy.model.embed_images(pixels).flatten(0, 1))

        self._graphs.capture(
            Shape(Kind.ENCODE_IMAGES, count),
            encode,
            Pixels(self._inputs, count, c.vision.image_size),
            writes=[Buffer('image_tokens', encoded)],
        )

    def _capture(self, kind: Kind, view: PrefixWrite) -> None:
        model, slots, tokens = self._policy.model, view.slots, view.tokens
        frames = [model.frame_embeddings()] if model.config.frame else []
        encoded, text = self._image_tokens[: self._text_begins(slots)], self._text.device[:slots]
        source = self._inputs.cut('source', slots, tokens).device

        def prefill(cache: PrefixWrite) -> None:
            packed = torch.cat([encoded, model.embed_tokens(text).flatten(0, 1), *frames])
            model.prefill(packed[source], cache)

        inputs = dict(image_tokens=encoded, text=text, source=source)
        graph = self._graphs.capture(
            Shape(kind, slots, tokens),
            prefill,
            view,
            writes=self._compression.scores.buffers if kind is Kind.SCORED_PREFILL else [],
            stores=self._prefixes.buffers('prefixes'),
            reads=[Buffer(name, tensor) for name, tensor in inputs.items()],
        )
        if graph.is_compiled:
            fast = self._fast[kind]
            fast |= {n: tokens for n in self._lengths if n <= tokens and n not in fast}

    def _capture_append_state(self, slots: int) -> None:
        model, states = self._policy.model, self._states.device[:slots]

        def append(cache: PrefixAppend) -> None:
            model.append_state(states, cache)

        self._graphs.capture(
            Shape(Kind.APPEND_STATE, slots),
            append,
            PrefixAppend(self._prefixes, slots, self._inputs),
            writes=[],
            stores=self._prefixes.buffers('prefixes'),
            reads=[Buffer('states', states)],
        )

    def _text_begins(self, slots: int) -> int:
        """Return the index of the text behind the image tokens of so many robots."""
        c = self._policy.config
        return slots * len(c.views) * c.vision.tokens

    def validate(self, observations: Sequence[Observation]) -> None:
        """Raise ValueError for a bad batch, BadObservationError for its first bad observation."""
        if not observations:
            raise ValueError('a batch must have at least one observation (got none)')
        self._slots(len(observations))
        robots = set()
        for o in observations:
            if fault := _fault(o, self._policy):
                raise BadObservationError(o, fault)
            if o.robot in robots:
                raise BadObservationError(
                    o, 'is its second in the batch, but a robot may not be twice'
                )
            robots.add(o.robot)

    def run(
        self, observations: Sequence[Observation], rows: Sequence[int], decided: Decisions
    ) -> list[Written]:
        """Write each validated observation into its row, in one batch. Raises ValueError."""
        slots, c = self._slots(len(observations)), self._policy.config
        pixels = self._policy.pixels([image for o in observations for image in o.images])
        self._pixels.host[: len(pixels)] = pixels
        prompts = [self._policy.prompt_ids(o.instruction, o.state) for o in observations]
        for text, ids in zip(self._text.host, prompts, strict=False):
            text[: len(ids)] = ids
        views = [sum(view is not None for view in o.images) for o in observations]
        sources = self._sources(views, [len(ids) for ids in prompts], slots)
        lengths = [len(source) for source in sources]
        kind = Kind.SCORED_PREFILL if decided.scores_frame else Kind.PREFILL
        tokens = self._tokens(kind, slots, max(lengths))
        packed = self._inputs.cut('source', slots, tokens).host
        packed[:] = 0
        for own, source in zip(packed, sources, strict=False):
            own[: len(source)] = source
        graph = self._graphs[Shape(kind, slots, tokens)]
        queries = [range(0)] * len(rows)
        if kind is Kind.SCORED_PREFILL:
            queries = [
                self._compression.prompt_queries(length, len(ids))
                for length, ids in zip(lengths, prompts, strict=True)
            ]
            graph.view.bind_queries(queries)
        graphs = [self._graphs[Shape(Kind.ENCODE_IMAGES, len(pixels))], graph]
        if c.state_width:
            for own, o in zip(self._states.host, observations, strict=False):
                own[:] = self._policy.state_token(self._policy.processing.state(o.state))
            graphs.append(self._graphs[Shape(Kind.APPEND_STATE, slots)])
            graphs[-1].view.prepare(rows, lengths)
        graph.view.bind(rows, lengths)  # sends all inputs
        for each in graphs:
            each.replay()
        return [
            Written(n + c.state_tokens, len(own)) for n, own in zip(lengths, queries, strict=True)
        ]

    def _tokens(self, kind: Kind, slots: int, longest: int) -> int:
        """Return the padded number of tokens, preferably a compiled one. Raises ValueError."""
        tokens = shapes.smallest(self._lengths, longest, 'tokens', 'shorten the prompt')
        return self._fast[kind].get(tokens, tokens) if slots == 1 else tokens

    def _sources(self, views: Sequence[int], texts: Sequence[int], slots: int) -> list[np.ndarray]:
        """Return the index of each slot's tokens before they are packed.

        views: number of present views of each; texts: tokens of its prompt.
        """
        c, begins, image = self._policy.config, self._text_begins(slots), 0
        frame = begins + slots * c.max_text + np.arange(c.frame_tokens)
        before, after = frame[:-1], frame[-1:]
        images = np.arange(begins).reshape(-1, c.vision.tokens)
        sources = []
        for slot, (present, text) in enumerate(zip(views, texts, strict=True)):
            empty = max(0, min(c.empty_views, c.view_slots - present)) if c.frame_tokens else 0
            parts = [
                part for view in images[image : image + present] for part in (before, view, after)
            ]
            own = begins + slot * c.max_text + np.arange(text)
            sources.append(np.concatenate([*parts, *[before, after] * empty, own]))
            image += present
        return sources

    def _slots(self, frames: int) -> int:
        """Return the slots of the batch for so many frames. Raises ValueError for too many."""
        return shapes.smallest(
            self._robots,
            frames,
            'frames',
            'raise engine.max_batch_robots, or prefill fewer at once',
        )


def _fault(o: Observation, policy: Policy) -> str:
    """Return why no prefix can be made of an observation; '' if one can."""
    return _fact_fault(o) or _images_fault(o, policy) or _state_fault(o, policy.config.state_dim)


def _fact_fault(o: Observation) -> str:
    for name in ('instruction', 'robot'):
        if not is_text(text := getattr(o, name)):
            return f'has {name} {shown(repr(text))}: it must be a str that UTF-8 can encode'
    for name in ('stamp', 'sequence'):
        if not _is_whole(number := getattr(o, name)):
            return (
                f'has a {name} of type {type(number).__name__}: it must be an integer of 64 bits'
            )
    is_number = isinstance(o.deadline, int | float | np.integer | np.floating)
    if not is_number or isinstance(o.deadline, bool) or o.deadline != o.deadline:
        what = 'NaN' if is_number else f'of type {type(o.deadline).__name__}'
        return f'has a deadline {what}: it must be seconds of the steady clock'
    if not isinstance(o.guide, Guide | None):
        return f'has a guide of type {type(o.guide).__name__}: it must be a Guide or None'
    return ''


def _is_whole(number: object) -> bool:
    if isinstance(number, bool) or not isinstance(number, int | np.integer):
        return False
    return bool(-(2**63) <= number < 2**63)


def _images_fault(o: Observation, policy: Policy) -> str:
    c = policy.config
    if not isinstance(o.images, tuple | list):
        return f'has images of type {type(o.images).__name__}: it must be a tuple of arrays'
    if len(o.images) != len(c.views):
        return (
            f'has {len(o.images)} images for the {len(c.views)} views {", ".join(c.views)}: give '
            'None for one that is missing'
        )
    present = [(view, i) for view, i in zip(c.views, o.images, strict=True) if i is not None]
    if not present:
        return f'has no image: at least one of {", ".join(c.views)} is needed'
    for view, image in present:
        if not isinstance(image, np.ndarray):
            return (
                f'has an image of view {view} of type {type(image).__name__}: it must be a numpy '
                'array, uint8 [height, width, 3]'
            )
        if not policy.is_fitted(image) and not _is_picture(image):
            return (
                f'has an image of view {view} of {list(image.shape)} {image.dtype}: it must be '
                'uint8 [height, width, 3]'
            )
    return ''


def _state_fault(o: Observation, dims: int) -> str:
    if not isinstance(o.state, np.ndarray) or o.state.dtype.kind not in 'fiu':
        what = getattr(o.state, 'dtype', type(o.state).__name__)
        return f'has a state of {what}: it must be a numpy array of real numbers [{dims}]'
    if o.state.shape != (dims,):
        return f'has a state of shape {o.state.shape}, not {(dims,)}'
    if not np.isfinite(o.state).all():
        return 'has a state that is not finite'
    if (most := np.abs(o.state.astype(np.float64)).max()) > STATE_MOST:
        return f'has a state of {most:.3g}: it must be from -{STATE_MOST:g} to {STATE_MOST:g}'
    return ''


def _is_picture(image: np.ndarray) -> bool:
    return image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3 and image.size > 0
