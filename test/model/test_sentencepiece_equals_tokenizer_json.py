"""A SentencePiece model encodes text as the tokenizer.json that transformers made from it."""

import random

import pytest
from cases import LEROBOT, LIBERO

from embodied_kv.model.tokenizer import Tokenizer

PATH = LIBERO / 'paligemma_tokenizer.model'
THEIRS = Tokenizer.load(LEROBOT / 'tokenizer')  # of the same vocabulary
WORDS = (
    'pick up the red block and place it on plate State: 12 255 -1 ; Action é 世界🙂 \t <loc0000> '
    'fold_towel, cabinet \n\n <seg001> <unused0> x'
).split(' ')
BETWEEN = ('', ' ', '  ', '   ', '    ', '\n', '\n\n\n', '_')


@pytest.fixture(scope='module')
def ours():
    return Tokenizer.load(PATH)


def test_ids_are_equal_and_text_comes_back(ours):
    chance = random.Random(0)
    for _ in range(1000):
        count = chance.randrange(12)
        text = ''.join(chance.choice(WORDS) + chance.choice(BETWEEN) for _ in range(count))
        assert ours.encode(text, bos=True) == THEIRS.encode(text, bos=True), repr(text)
        assert ours.decode(ours.encode(text)) == text


def test_specials_are_those_of_the_file(ours):
    assert (ours.pad, ours.eos, ours.bos, ours.vocab_size) == (0, 1, 2, 512)


def test_text_never_becomes_a_control_symbol(ours):
    assert ours.eos not in ours.encode('<eos> and <bos>')
    assert ours.decode(ours.encode('<eos> and <bos>')) == '<eos> and <bos>'


@pytest.mark.parametrize(
    ('damage', 'complaint'),
    [
        (lambda data: data[:-3], 'is not a SentencePiece model'),
        (lambda data: b'', 'it has no pieces'),
        (lambda data: b'PK\x03\x04' + data, 'is not a SentencePiece model'),
        (lambda data: b'\x08\x01', 'is not a SentencePiece model'),  # a number for a piece
        (lambda data: b'\x0a\x00', 'is not a SentencePiece model'),  # a piece without text
        (
            lambda data: b'\x0a\x02\x08\x01',
            'is not a SentencePiece model',
        ),  # a number as text
        (lambda data: b'\x08' + b'\xff' * 100 + b'\x01', 'more than 64 bits'),
        # Appended: a normaliser (message 3) with a dummy prefix (field 3).
        (lambda data: data + b'\x1a\x02\x18\x01', 'add_dummy_prefix is True, only False'),
        (lambda data: data + b'\x12\x02\x18\x01', 'model_type is 1, only 2'),
    ],
)
def test_another_kind_of_file_is_refused(tmp_path, damage, complaint):
    path = tmp_path / 'odd.model'
    path.write_bytes(damage(PATH.read_bytes()))
    with pytest.raises(ValueError, match=complaint):
        Tokenizer.load(path)
