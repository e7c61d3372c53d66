"""The tokenizer encodes text, decodes ids, and decodes streams piece by piece."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

import embodied_kv
from embodied_kv.model.tokenizer import SPECIALS, StreamDecoder, Tokenizer

BYTES = Tokenizer.bytes()


@pytest.fixture(scope='module')
def sentencepiece():
    """Return a small tokenizer as Gemma's: spaces are U+2581, unknown characters are bytes."""
    specials = ['<pad>', '<eos>', '<bos>', *(f'<0x{byte:02X}>' for byte in range(256))]
    backend = Backend(models.BPE(byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Replace(' ', '\u2581')
    backend.decoder = decoders.Sequence(
        [decoders.Replace('\u2581', ' '), decoders.ByteFallback(), decoders.Fuse()]
    )
    text = ['move the red cube to the left', 'put the green ball into the bowl'] * 4
    backend.train_from_iterator(text, trainers.BpeTrainer(vocab_size=330, special_tokens=specials))
    document = json.loads(backend.to_str())
    document['added_tokens'] = [t for t in document['added_tokens'] if t['id'] < 3]
    return Tokenizer(Backend.from_str(json.dumps(document)), 'small')


@given(st.text())
def test_decode_of_encode_equals_the_text(text):
    assert BYTES.decode(BYTES.encode(text, bos=True)) == text


@given(st.lists(st.integers(-5, 300)))
def test_pieces_of_a_stream_add_up_to_decode(ids):
    stream = StreamDecoder(BYTES)
    pieces = [stream.feed([token]) for token in ids]
    assert ''.join([*pieces, stream.finish()]) == BYTES.decode(ids)


@given(st.text())
def test_a_stream_never_emits_half_a_character(text):
    stream = StreamDecoder(BYTES)
    said = ''
    for token in BYTES.encode(text):
        said += stream.feed([token])
        assert text.startswith(said)
    assert said == text


def test_special_ids_are_those_of_gemma():
    assert (BYTES.pad, BYTES.eos, BYTES.bos, BYTES.vocab_size) == (0, 1, 2, 259)
    assert BYTES.encode('', bos=True) == [2]


def test_text_cannot_spell_a_special_token():
    assert not {0, 1, 2} & set(BYTES.encode('<eos> <pad><bos>'))


ASSETS = Path(embodied_kv.__file__).parent / 'demo/assets'
SHIPPED = {path.parent.name: path for path in ASSETS.glob('*/tokenizer.json')}
BESIDE = st.sampled_from(['', ' ', '\n', '<', '>', 'a', 'pick', '\u2581', 'é']) | st.text()


@pytest.fixture(scope='module')
def shipped():
    return {name: Tokenizer.load(path) for name, path in SHIPPED.items()} | {'bytes': BYTES}


@given(parts=st.lists(st.tuples(BESIDE, st.integers(0, 99)), min_size=1, max_size=4), end=BESIDE)
def test_the_name_of_a_special_token_is_text_to_each_shipped_tokenizer(shipped, parts, end):
    for tokenizer in shipped.values():
        added = tokenizer.backend.get_added_tokens_decoder()
        special = {token for token, word in added.items() if word.special}
        special |= {tokenizer.pad, tokenizer.eos, tokenizer.bos}
        names = [tokenizer.backend.id_to_token(token) for token in sorted(special)]
        names += [name for spellings in SPECIALS.values() for name in spellings]
        text = ''.join(beside + names[at % len(names)] for beside, at in parts) + end
        ids = tokenizer.encode(text, bos=True)
        assert ids[0] == tokenizer.bos and not special & set(ids[1:])
        assert tokenizer.decode(ids) == text


def test_a_word_that_is_a_special_token_becomes_none():
    words = {'<pad>': 0, '<eos>': 1, '<bos>': 2, 'up': 3}
    backend = Backend(models.WordLevel(words, unk_token='up'))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.WhitespaceSplit(), decoders.ByteLevel()
    assert Tokenizer(backend, 'of words').encode('up <eos> <pad> up') == [3, 3]


@pytest.mark.parametrize('text', [b'put', None, 7, 'a\ud800b'])
def test_input_that_is_not_text_is_refused(text):
    with pytest.raises(ValueError, match='text must be a str that UTF-8 can encode'):
        BYTES.encode(text)


def test_ids_beyond_the_vocabulary_are_nothing():
    assert BYTES.decode([-1, 259, 10**9, *BYTES.encode('a'), 0, 1, 2]) == 'a'


def test_sentencepiece_decodes_words_and_bytes(sentencepiece):
    text = 'move the green cube, 世界 🙂 é'
    ids = sentencepiece.encode(text)
    assert len(ids) < len(text.encode())
    assert sentencepiece.decode(ids) == text
    stream = StreamDecoder(sentencepiece)
    assert ''.join(stream.feed([token]) for token in ids) == text


def test_saved_and_loaded_is_the_same(tmp_path, sentencepiece):
    for tokenizer in (BYTES, sentencepiece):
        tokenizer.save(tmp_path / 'tokenizer.json')
        loaded = Tokenizer.load(tmp_path)
        assert loaded.encode('put é', bos=True) == tokenizer.encode('put é', bos=True)
        assert (loaded.pad, loaded.eos, loaded.bos) == (0, 1, 2)


def test_added_tokens_beyond_the_limit_are_never_encoded(tmp_path, sentencepiece):
    words = sentencepiece.vocab_size
    backend = Backend.from_str(sentencepiece.backend.to_str())
    backend.add_special_tokens(['<image>'])
    backend.save(str(tmp_path / 'tokenizer.json'))
    loaded = Tokenizer.load(tmp_path, limit=words)
    assert max(loaded.encode('the <image> red')) < words == loaded.vocab_size
    with pytest.raises(ValueError, match=f'has {words} tokens, the model embeds 100'):
        Tokenizer.load(tmp_path, limit=100)


def without(special):
    document = json.loads(BYTES.backend.to_str())
    document['model']['vocab']['x' + special] = document['model']['vocab'].pop(special)
    return json.dumps(document)


@pytest.mark.parametrize(
    ('content', 'complaint'),
    [
        (None, 'does not exist'),
        ('{}', 'is not a tokenizer.json'),
        (without('<bos>'), 'has no <bos> or <s> or'),
        (without('<eos>'), 'has no <eos> or </s> or'),
    ],
)
def test_a_bad_file_is_refused_by_name(tmp_path, content, complaint):
    path = tmp_path / 'tokenizer.json'
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=complaint):
        Tokenizer.load(path)
