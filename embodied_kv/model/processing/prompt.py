"""The prompt of a policy: the cleaned instruction, and the bins of the normalised state.

openpi and LeRobot have the same format; this project's own policies differ slightly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_kv.model.tokenizer import Tokenizer

STATE_BINS = 256
# Text beyond this many characters per token is cut before encoding; no tokenizer is denser.
CHARACTERS_PER_TOKEN = 16
RECALL_TOKENS = 16


def clean(instruction: str) -> str:
    """Return the instruction as openpi cleans it: strip, then `_` and newline to space."""
    return instruction.strip().replace('_', ' ').replace('\n', ' ')


def recall_ids(tokenizer: Tokenizer, instruction: str) -> list[int]:
    """Return the recall tokens of an instruction, which read memory rows and the present frame.

    They are its first RECALL_TOKENS tokens; none of an empty instruction.
    """
    text = clean(instruction).strip()[: RECALL_TOKENS * CHARACTERS_PER_TOKEN]
    return tokenizer.encode(f' {text}')[:RECALL_TOKENS] if text else []


@dataclass(frozen=True)
class PromptStyle:
    """The prompt format that a checkpoint was trained with.

    with_state: `Task: {text}, State: {bins};`, newline, `Action: `; else the text and a newline,
    which openpi encodes separately. cleans: `clean` is applied; else, as in LeRobot without the
    state, the newline is only added to a text that does not end with one. begins: BOS comes before
    the text. lowest_bin: bin of a state below -1; both references have -1. padding: normalised
    numbers that follow the state. padded_dims: the state is then padded with zeros to this many
    dims. strips_again: the text is stripped again after the replacement of underscores and after
    the cut.
    """

    with_state: bool = True
    cleans: bool = True
    begins: bool = True
    lowest_bin: int = -1
    padding: tuple[float, ...] = ()
    padded_dims: int = 0
    strips_again: bool = False

    def bins(self, state: NDArray[np.floating]) -> NDArray[np.int64]:
        """Return the bins of a normalised state [D] in [-1, 1]; 255 above 1.

        Raises ValueError for NaN.
        """
        if np.isnan(state).any():
            raise ValueError(f'state {int(np.flatnonzero(np.isnan(state))[0])} is NaN')
        padded = np.append(state, self.padding).astype(state.dtype)
        padded = np.pad(padded, (0, max(0, self.padded_dims - len(padded))))
        edges = np.linspace(-1, 1, STATE_BINS + 1)[:-1]
        return np.maximum(np.digitize(padded, edges) - 1, self.lowest_bin)

    def texts(self, text: str, state: NDArray[np.floating]) -> tuple[str, ...]:
        """Return the texts to encode separately, of a cleaned text."""
        text = text.strip() if self.strips_again else text
        if not self.cleans:
            return (text if text.endswith('\n') else f'{text}\n',)
        if not self.with_state:
            return text, '\n'
        return (f'Task: {text}, State: {" ".join(map(str, self.bins(state)))};\nAction: ',)

    def tokens(
        self, tokenizer: Tokenizer, instruction: str, state: NDArray[np.floating], max_text: int
    ) -> tuple[list[int], bool]:
        """Return at most `max_text` ids, and whether the instruction was truncated.

        With the state, the instruction is truncated at its end, and the state and `Action: `
        remain. (The references truncate the prompt, and so lose these.) Without it, the prompt is
        truncated as in the references, which lose the newline. Raises ValueError where the state
        alone does not fit, or is NaN.
        """
        text = clean(instruction) if self.cleans else instruction

        def encode(characters: int) -> list[int]:
            first, *rest = self.texts(text[:characters], state)
            ids = tokenizer.encode(first, bos=self.begins)
            return [*ids, *(token for more in rest for token in tokenizer.encode(more))]

        fits, limit = 0, min(len(text), CHARACTERS_PER_TOKEN * max_text)
        ids = encode(limit)
        if len(ids) <= max_text:
            return ids, limit < len(text)
        if not self.with_state:
            return ids[:max_text], True
        ids = encode(0)
        if len(ids) > max_text:
            raise ValueError(
                f'max_text {max_text} is too short: the state needs {len(ids)} tokens'
            )
        while limit - fits > 1:
            middle = (fits + limit) // 2
            longer = encode(middle)
            if len(longer) <= max_text:
                fits, ids = middle, longer
            else:
                limit = middle
        return ids, True


def own_prompt(with_state: bool) -> PromptStyle:
    """Return the format of this project's own policies."""
    return PromptStyle(with_state, lowest_bin=0, strips_again=True)


OWN_PROMPT = own_prompt(True)
