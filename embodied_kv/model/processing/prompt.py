"""The prompt of a policy: an instruction, cleaned, and its normalised state as bins in words.

Knows the conventions of openpi and LeRobot, which spell alike, and our own. Knows no units.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_kv.model.tokenizer import Tokenizer

STATE_BINS = 256
# Text of more characters than this per token is cut unread: no tokenizer packs it so densely.
CHARACTERS_PER_TOKEN = 16


def clean(instruction: str) -> str:
    """As openpi cleans it: stripped first, then `_` and newline to space."""
    return instruction.strip().replace('_', ' ').replace('\n', ' ')


@dataclass(frozen=True)
class PromptStyle:
    """How a checkpoint was prompted when it was trained.

    with_state: `Task: {text}, State: {bins};`, newline, `Action: `; else the text and a newline,
    which is a token of its own. lowest_bin: of a state below -1; both references say -1 there,
    which is no bin. padded_dims: zeros are appended to the state up to so many dims. strips_again:
    the text is stripped once more after its underscores became spaces, and after it was cut.
    """

    with_state: bool = True
    lowest_bin: int = -1
    padded_dims: int = 0
    strips_again: bool = False

    def bins(self, state: NDArray[np.floating]) -> NDArray[np.int64]:
        """Normalised state [D] -> bins of [-1, 1]; above 1 lies 255.

        Raises ValueError for a value that is not a number.
        """
        if np.isnan(state).any():
            raise ValueError(f'state {int(np.flatnonzero(np.isnan(state))[0])} is NaN')
        padded = np.pad(state, (0, max(0, self.padded_dims - len(state))))
        edges = np.linspace(-1, 1, STATE_BINS + 1)[:-1]
        return np.maximum(np.digitize(padded, edges) - 1, self.lowest_bin)

    def texts(self, text: str, state: NDArray[np.floating]) -> tuple[str, ...]:
        """What is encoded, each for itself, one after the other; text is clean already."""
        text = text.strip() if self.strips_again else text
        if not self.with_state:
            return text, '\n'
        return (f'Task: {text}, State: {" ".join(map(str, self.bins(state)))};\nAction: ',)

    def tokens(
        self, tokenizer: Tokenizer, instruction: str, state: NDArray[np.floating], max_text: int
    ) -> tuple[list[int], bool]:
        """The prompt's ids with BOS, at most `max_text`, and whether the instruction was cut.

        What is cut is the end of the instruction; the state and `Action: ` always survive. (The
        references cut the end of the prompt, which is just these.) Raises ValueError where they
        alone do not fit, or a state is not a number.
        """
        text = clean(instruction)

        def encode(characters: int) -> list[int]:
            first, *rest = self.texts(text[:characters], state)
            ids = tokenizer.encode(first, bos=True)
            return [*ids, *(token for more in rest for token in tokenizer.encode(more))]

        fits, limit = 0, min(len(text), CHARACTERS_PER_TOKEN * max_text)
        ids = encode(limit)
        if len(ids) <= max_text:
            return ids, limit < len(text)
        ids = encode(0)
        if len(ids) > max_text:
            raise ValueError(
                f'max_text {max_text} is too short: the state takes {len(ids)} tokens'
            )
        while limit - fits > 1:
            middle = (fits + limit) // 2
            longer = encode(middle)
            if len(longer) <= max_text:
                fits, ids = middle, longer
            else:
                limit = middle
        return ids, True


OWN_PROMPT = PromptStyle(lowest_bin=0, strips_again=True)
