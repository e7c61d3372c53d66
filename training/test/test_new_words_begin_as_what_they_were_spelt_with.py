"""New words keep the embeddings of old words and start as the mean of their own pieces."""

import torch

from embodied_kv.config import TABLETOP
from embodied_kv.model.tokenizer import Tokenizer
from training.common.initial import retell
from training.common.words import train_tokenizer

WIDTH = 8


def table(tokenizer):
    return torch.randn(tokenizer.vocab_size, WIDTH, generator=torch.Generator().manual_seed(0))


def test_the_same_words_keep_every_row():
    words = train_tokenizer(TABLETOP.backbone.vocab_size)
    before = table(words)
    after = before.clone()
    retell(after, words, words)
    assert torch.equal(after, before)


def test_a_new_word_is_the_mean_of_its_bytes_and_a_byte_is_itself():
    known, words = Tokenizer.bytes(), train_tokenizer(TABLETOP.backbone.vocab_size)
    before = torch.zeros(TABLETOP.backbone.vocab_size, WIDTH)
    before[: known.vocab_size] = table(known)
    after = before.clone()
    retell(after, known, words)
    (cube,), (letter,) = words.encode(' cube'), words.encode('q')
    spelt = before[known.encode(' cube')]
    assert len(spelt) == 5
    torch.testing.assert_close(after[cube], spelt.mean(0))
    assert torch.equal(after[letter], before[known.encode('q')[0]])
    for special in ('pad', 'eos', 'bos'):
        assert torch.equal(after[getattr(words, special)], before[getattr(known, special)])
