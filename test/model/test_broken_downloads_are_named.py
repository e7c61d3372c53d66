"""Files that a download or an editor has changed are read, or refused with their name."""

import codecs
import json

import pytest
from cases import ALOHA, LEROBOT, LIBERO, PRE, copied, opened, rewrite

from embodied_kv.model.tokenizer import Tokenizer
from embodied_kv.model.weights import CheckpointError, Weights

POINTER = b'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 7233\n'
FILES = {
    'lerobot': [
        *('config.json', PRE, 'model.safetensors', 'tokenizer/tokenizer.json'),
        'policy_preprocessor_step_3_normalizer_processor.safetensors',
    ],
    'openpi': [
        *('config.json', 'model.safetensors', 'paligemma_tokenizer.model'),
        'assets/physical-intelligence/libero/norm_stats.json',
    ],
}
CASES = [(kind, file) for kind, files in FILES.items() for file in files]


@pytest.fixture
def folder(tmp_path):
    return lambda kind: copied(LEROBOT if kind == 'lerobot' else LIBERO, tmp_path / 'policy')


@pytest.mark.parametrize(('kind', 'file'), CASES)
def test_git_lfs_pointer_is_named_with_the_remedy(folder, kind, file):
    path = folder(kind)
    (path / file).write_bytes(POINTER)
    with pytest.raises(CheckpointError, match=f'{file} must be .*Git LFS.*git lfs pull'):
        opened(path).load(dtype='float32')


@pytest.mark.parametrize('page', [b'<!DOCTYPE html>\n<html>', b'\n<html lang="en">'])
def test_web_page_is_not_a_file_of_weights(tmp_path, page):
    (tmp_path / 'model.safetensors').write_bytes(page)
    with pytest.raises(CheckpointError, match=r'got a web page.*hf download'):
        Weights(tmp_path)


@pytest.mark.parametrize('encoding', ['utf-8-sig', 'utf-16', 'utf-32'])
@pytest.mark.parametrize(('kind', 'file'), [c for c in CASES if c[1].endswith('.json')])
def test_json_with_a_byte_order_mark_is_read(folder, kind, file, encoding):
    path = folder(kind)
    text = (path / file).read_text()
    if file.endswith('tokenizer.json'):
        encoding = 'utf-8-sig'  # the only one that tokenizers reads
    (path / file).write_bytes(text.encode(encoding))
    checkpoint = opened(path)
    assert (
        checkpoint.tokenizer().vocab_size
        == opened(LEROBOT if kind == 'lerobot' else LIBERO).tokenizer().vocab_size
    )


def test_tokenizer_with_a_byte_order_mark_encodes_the_same(tmp_path):
    source = LEROBOT / 'tokenizer/tokenizer.json'
    (tmp_path / 'tokenizer.json').write_bytes(codecs.BOM_UTF8 + source.read_bytes())
    assert Tokenizer.load(tmp_path).encode('pick') == Tokenizer.load(source).encode('pick')


def test_index_of_weights_with_a_byte_order_mark_is_read(tmp_path):
    (tmp_path / 'model-1.safetensors').write_bytes((LEROBOT / 'model.safetensors').read_bytes())
    weights = Weights(LEROBOT)
    index = {'weight_map': dict.fromkeys(weights.names, 'model-1.safetensors')}
    (tmp_path / 'model.safetensors.index.json').write_bytes(
        codecs.BOM_UTF8 + json.dumps(index).encode()
    )
    assert {*Weights(tmp_path).names} == {*weights.names}


def widen(count):
    def change(value):
        for part in value['norm_stats'].values():
            for name, numbers in part.items():
                part[name] = (numbers * count)[:count]

    return change


def test_statistics_wider_than_the_network_name_both_files(tmp_path):
    path = copied(ALOHA, tmp_path / 'policy')
    (statistics,) = path.glob('assets/**/norm_stats.json')
    rewrite(statistics, widen(54))
    with pytest.raises(CheckpointError) as refused:
        opened(path)
    message = str(refused.value)
    assert 'the actions must have at most the 32 dims of the network' in message
    assert '(got 54)' in message and str(statistics) in message
    assert str(path / 'config.json') in message and 'use the statistics' in message


def test_unknown_setting_names_file_and_remedy(folder):
    path = folder('lerobot')
    rewrite(path / 'config.json', lambda value: value.update(uses_something_new=3))
    with pytest.raises(CheckpointError) as refused:
        opened(path)
    message = str(refused.value)
    assert message.startswith(f'{path / "config.json"}: not supported: uses_something_new = 3')
    assert 'remove it from the file' in message
