"""A client's observation as the policy takes it, by the contract's section `openpi`.

Knows the keys of a robot, pixels and numbers. Does not know connections or engines. Pictures and
state are in the policy's own frame and units, as openpi's clients send them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_kv.robots.contract import Contract
from embodied_kv.text import listed, shown

PROMPT = 'prompt'
SIDE, PIXELS = 4096, 2048**2  # of a picture: either way, and in all
CHARACTERS = 16_384  # of a prompt
NUMBERS = 65_536  # of an array of them
LARGEST = 1e6  # of a number of the state, in any unit


class Refused(ValueError):
    """A request that cannot be served; the message says what to send instead."""


@dataclass(frozen=True, eq=False)
class Seen:
    """images: of each view of the contract uint8 [height, width, 3], None where there is none.

    As the dialect fits them. state: float64 [state_dim]. prompt: '' where the client sent none.
    """

    images: Mapping[str, NDArray[np.uint8] | None]
    state: NDArray[np.float64]
    prompt: str


class Dialect:
    """What clients of this robot send. questions: whether its policy answers any.

    prompts: those that the contract continues.

    fit: what becomes of a picture at once, as `Policy.fitted` for one; nothing by default.
    """

    def __init__(
        self, contract: Contract, fit: Callable[[NDArray], NDArray] = lambda picture: picture
    ) -> None:
        self._robot, self._client, self._fit = contract.robot_type, contract.clients, fit
        optional = {self._client.views[view] for view in self._client.optional}
        self.questions = contract.language.questions
        self.prompts = frozenset(contract.language.prompts)
        self._required = {*self._client.views.values(), *self._client.state} - optional

    def read(self, request: Mapping[str, object]) -> Seen:
        """An observation out of a request; unknown keys are passed over, as openpi does.

        Raises Refused.
        """
        found = flat(request)
        if missing := sorted(self._required - found.keys()):
            raise Refused(
                f'{missing[0]} is missing: a client of {self._robot} sends '
                f'{listed(sorted(self._required))} and {PROMPT}, here are {listed(sorted(found))}'
            )
        images = {
            view: self._fit(image(key, found[key])) if key in found else None
            for view, key in self._client.views.items()
        }
        state = [self._numbers(key, found[key], n) for key, n in self._client.state.items()]
        return Seen(images, np.concatenate(state), prompt(found.get(PROMPT, '')))

    def _numbers(self, key: str, value: object, count: int) -> NDArray[np.float64]:
        """Return float64 [count]. Booleans count as 0 and 1, as openpi counts them.

        A single number may come without a list, and batch dimensions of one are removed.
        """
        found = numbers(key, value, 'biuf')
        if found.size != count or any(size != 1 for size in found.shape[:-1]):
            raise Refused(
                f'{key} is {list(found.shape)}: a client of {self._robot} sends {count} numbers'
            )
        if not np.isfinite(found).all():
            raise Refused(f'{key} has NaN or infinity: send where the robot is')
        if (np.abs(found) > LARGEST).any():
            raise Refused(f'{key} goes up to {np.abs(found).max():g}: no robot is there')
        return found.reshape(count)


def flat(request: Mapping[str, object]) -> dict[str, object]:
    """Values by their paths, nested maps taken apart: {'a': {'b': 1}} is {'a/b': 1}.

    Raises Refused where two have the same path.
    """
    found: dict[str, object] = {}
    for path, value in _paths(request, ''):
        if path in found:
            raise Refused(f'{shown(path)} is there twice: send one of the two')
        found[path] = value
    return found


def _paths(request: Mapping[str, object], path: str) -> Iterator[tuple[str, object]]:
    for key, value in request.items():
        if not isinstance(key, str):
            raise Refused(f'the key {str(key)[:40]!r} is no text')
        if isinstance(value, Mapping):
            yield from _paths(value, f'{path}{key}/')
        else:
            yield path + key, value


def image(key: str, value: object) -> NDArray[np.uint8]:
    """Return uint8 [height, width, 3] of a picture: channels last or first, floats from 0 to 1.

    Batch dimensions of one are removed. Raises Refused.
    """
    while isinstance(value, np.ndarray) and value.ndim > 3 and len(value) == 1:
        value = value[0]
    if not isinstance(value, np.ndarray) or value.ndim != 3 or 3 not in value.shape[::2]:
        shape = list(value.shape) if isinstance(value, np.ndarray) else type(value).__name__
        raise Refused(f'{key} must be [height, width, 3] or [3, height, width] (got {shape})')
    if value.shape[0] == 3:  # as openpi tells them apart
        value = value.transpose(1, 2, 0)
    if not all(1 <= side <= SIDE for side in value.shape[:2]):
        raise Refused(f'{key} must have sides of 1 to {SIDE} pixels (got {list(value.shape)})')
    if (pixels := value.shape[0] * value.shape[1]) > PIXELS:
        raise Refused(
            f'{key} has {pixels} pixels: send at most {PIXELS}, the policy looks at fewer anyway'
        )
    if value.dtype.kind == 'f':
        if not ((value >= 0) & (value <= 1)).all():
            raise Refused(f'{key} is a picture of floats: they lie from 0 to 1')
        value = (255 * value).astype(np.uint8)
    if value.dtype != np.uint8:
        raise Refused(f'{key} is of {value.dtype}: send uint8, or floats from 0 to 1')
    return np.ascontiguousarray(value)


def numbers(key: str, value: object, kinds: str = 'iuf') -> NDArray[np.float64]:
    """Return an array, a list or a number as float64; a number becomes [1].

    kinds: of numpy, that are accepted. Raises Refused for words and the like.
    """
    try:
        found = np.atleast_1d(np.asarray(value))
        if found.dtype.kind not in kinds:
            raise ValueError
    except ValueError as error:  # also ragged lists
        raise Refused(f'{key} is no array of numbers') from error
    if found.size > NUMBERS:
        raise Refused(f'{key} is {list(found.shape)}: {NUMBERS} numbers are enough')
    return found.astype(np.float64)


def prompt(value: object) -> str:
    """Return the text of a prompt: text, UTF-8 bytes, or an array or a list of one of these.

    Raises Refused.
    """
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    if isinstance(value, bytes):
        if len(value) > 4 * CHARACTERS:
            raise Refused(f'{PROMPT} has {len(value)} bytes: {CHARACTERS} characters are enough')
        try:
            value = value.decode()
        except UnicodeDecodeError as error:
            raise Refused(f'{PROMPT} is bytes that are not UTF-8: send text') from error
    if not isinstance(value, str):
        kind = type(value).__name__
        raise Refused(f'{PROMPT} is a {kind}: send text, or an array or a list of one text')
    return text(PROMPT, value, CHARACTERS).strip()


def text(key: str, value: str, most: int) -> str:
    """Itself. Raises Refused where it is longer than `most`, or cannot be written as UTF-8."""
    if len(value) > most:
        raise Refused(f'{key} has {len(value)} characters: {most} are enough')
    try:
        value.encode()
    except UnicodeEncodeError as error:  # half of a pair of UTF-16
        lone = shown(value[error.start])
        raise Refused(f'{key} has {lone}, which is no character: send text as UTF-8') from error
    return value
