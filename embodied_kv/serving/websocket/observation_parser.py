"""The observation in a client's request, for the policy, by the contract's section `openpi`.

Images and state are in the policy's own frame and units, as openpi's clients send them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_kv.robots.contract import Contract
from embodied_kv.text import listed, shown

PROMPT = 'prompt'
SIDE, PIXELS = 4096, 2048**2  # maximum of an image: each side, and in all
CHARACTERS = 16_384  # maximum of a prompt
NUMBERS = 65_536  # maximum of an array
LARGEST = 1e6  # maximum of a number of the state, in any unit


class RefusedError(ValueError):
    """A request that cannot be served; the message states the reason."""


@dataclass(frozen=True, eq=False)
class ParsedObservation:
    """The parsed content of a request.

    Attributes:
        images: By view, uint8 [height, width, 3], converted by `fit`; None for no image.
        state: float64 [state_dim].
        prompt: '' if the client sent none.
    """

    images: Mapping[str, NDArray[np.uint8] | None]
    state: NDArray[np.float64]
    prompt: str


class ObservationParser:
    """Parses the requests of clients of a robot.

    `questions`: whether its policy answers any. `prompts`: the prompts of the contract. `fit`
    converts an image, as `Policy.fitted`.
    """

    def __init__(
        self, contract: Contract, fit: Callable[[NDArray], NDArray] = lambda picture: picture
    ) -> None:
        self._robot, self._client, self._fit = contract.robot_type, contract.clients, fit
        optional = {self._client.views[view] for view in self._client.optional}
        self.questions = contract.language.questions
        self.prompts = frozenset(contract.language.prompts)
        self._required = {*self._client.views.values(), *self._client.state} - optional

    def read(self, request: Mapping[str, object]) -> ParsedObservation:
        """Return the observation of a request. Raises RefusedError.

        Unknown keys are ignored, as openpi does.
        """
        found = flat(request)
        if missing := sorted(self._required - found.keys()):
            raise RefusedError(
                f'{missing[0]} must be present: a client of {self._robot} sends '
                f'{listed(sorted(self._required))} and {PROMPT} (got {listed(sorted(found))})'
            )
        images = {
            view: self._fit(image(key, found[key])) if key in found else None
            for view, key in self._client.views.items()
        }
        state = [self._numbers(key, found[key], n) for key, n in self._client.state.items()]
        return ParsedObservation(images, np.concatenate(state), prompt(found.get(PROMPT, '')))

    def _numbers(self, key: str, value: object, count: int) -> NDArray[np.float64]:
        """Return float64 [count].

        As in openpi, booleans are 0 and 1, a single number needs no list, and batch dimensions of
        one are removed.
        """
        found = numbers(key, value, 'biuf')
        if found.size != count or any(size != 1 for size in found.shape[:-1]):
            raise RefusedError(
                f'{key} must be {count} numbers for {self._robot} (got {list(found.shape)})'
            )
        if not np.isfinite(found).all():
            raise RefusedError(f'{key} must be finite (got NaN or infinity)')
        if (np.abs(found) > LARGEST).any():
            raise RefusedError(f'{key} must be at most {LARGEST:g} (got {np.abs(found).max():g})')
        return found.reshape(count)


def flat(request: Mapping[str, object]) -> dict[str, object]:
    """Return the values of nested maps by path: {'a': {'b': 1}} is {'a/b': 1}.

    Raises RefusedError if two have the same path.
    """
    found: dict[str, object] = {}
    for path, value in _paths(request, ''):
        if path in found:
            raise RefusedError(f'{shown(path)} must be sent once (got two)')
        found[path] = value
    return found


def _paths(request: Mapping[str, object], path: str) -> Iterator[tuple[str, object]]:
    for key, value in request.items():
        if not isinstance(key, str):
            raise RefusedError(f'keys must be text (got {str(key)[:40]!r})')
        if isinstance(value, Mapping):
            yield from _paths(value, f'{path}{key}/')
        else:
            yield path + key, value


def image(key: str, value: object) -> NDArray[np.uint8]:
    """Return an image as uint8 [height, width, 3]. Raises RefusedError.

    The input is uint8, or floats from 0 to 1, with its channels last or first. Batch dimensions of
    one are removed.
    """
    while isinstance(value, np.ndarray) and value.ndim > 3 and len(value) == 1:
        value = value[0]
    if not isinstance(value, np.ndarray) or value.ndim != 3 or 3 not in value.shape[::2]:
        shape = list(value.shape) if isinstance(value, np.ndarray) else type(value).__name__
        raise RefusedError(f'{key} must be [height, width, 3] or [3, height, width] (got {shape})')
    found: NDArray = value.transpose(1, 2, 0) if value.shape[0] == 3 else value  # as openpi
    if not all(1 <= side <= SIDE for side in found.shape[:2]):
        raise RefusedError(
            f'{key} must have sides of 1 to {SIDE} pixels (got {list(found.shape)})'
        )
    if (pixels := found.shape[0] * found.shape[1]) > PIXELS:
        raise RefusedError(
            f'{key} must have at most {PIXELS} pixels (got {pixels}); the policy needs fewer'
        )
    if found.dtype.kind == 'f':
        if not ((found >= 0) & (found <= 1)).all():
            raise RefusedError(f'{key} must be from 0 to 1 if it is an image of floats')
        found = (255 * found).astype(np.uint8)
    if found.dtype != np.uint8:
        raise RefusedError(f'{key} must be uint8, or floats from 0 to 1 (got {found.dtype})')
    return np.ascontiguousarray(found)


def numbers(key: str, value: object, kinds: str = 'iuf') -> NDArray[np.float64]:
    """Return an array, a list or a number as float64; a number becomes [1]. Raises RefusedError.

    `kinds`: the accepted values of `dtype.kind`.
    """
    try:
        found = np.atleast_1d(np.asarray(value))
        if found.dtype.kind not in kinds:
            raise ValueError
    except ValueError as error:  # also for ragged lists
        raise RefusedError(f'{key} must be an array of numbers') from error
    if found.size > NUMBERS:
        raise RefusedError(f'{key} must have at most {NUMBERS} numbers (got {list(found.shape)})')
    return found.astype(np.float64)


def prompt(value: object) -> str:
    """Return the text of a prompt. Raises RefusedError.

    The input is text, UTF-8 bytes, or an array or a list of one of these.
    """
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    if isinstance(value, bytes):
        if len(value) > 4 * CHARACTERS:
            raise RefusedError(
                f'{PROMPT} must have at most {CHARACTERS} characters (got {len(value)} bytes)'
            )
        try:
            value = value.decode()
        except UnicodeDecodeError as error:
            raise RefusedError(f'{PROMPT} must be UTF-8 if it is bytes; send text') from error
    if not isinstance(value, str):
        kind = type(value).__name__
        raise RefusedError(
            f'{PROMPT} must be text, or an array or a list of one text (got {kind})'
        )
    return text(PROMPT, value, CHARACTERS).strip()


def text(key: str, value: str, most: int) -> str:
    """Return the text unchanged. Raises RefusedError if it is too long or not valid UTF-8."""
    if len(value) > most:
        raise RefusedError(f'{key} must have at most {most} characters (got {len(value)})')
    try:
        value.encode()
    except UnicodeEncodeError as error:  # half of a UTF-16 surrogate pair
        lone = shown(value[error.start])
        raise RefusedError(f'{key} must be valid UTF-8 (got the lone surrogate {lone})') from error
    return value
