"""`checkpoint` may name a repository of the Hugging Face hub, at a revision."""

import errno
import os
import shutil

import pytest
from cases import LEROBOT, PRE, SMOLVLA, copied, declared, opened, rewrite
from hub_server import server
from huggingface_hub import constants, file_download

from embodied_kv.model.checkpoints import hub
from embodied_kv.model.checkpoints.open import open_checkpoint
from embodied_kv.model.files import CheckpointError

__all__ = ['server']  # a fixture
NAME = 'team/arm'


@pytest.fixture
def folder(tmp_path):
    """Return a SmolVLA folder with its tokenizer and the config of its language model."""
    return copied(SMOLVLA, tmp_path / 'source')


def read(name, lines=None):
    say = hub.silent if lines is None else lines.append
    return open_checkpoint(name, declared(SMOLVLA), say=say)


def test_a_repository_is_read_as_its_folder(server, folder):
    commit, lines = server.push(NAME, folder), []
    found = read(NAME, lines)
    assert found.config == opened(folder).config
    assert found.source == f'{NAME}@{commit}' and any(commit in line for line in lines)
    policy = found.load(dtype='float32')
    assert policy.source == f'{NAME}@{commit}'


def test_only_files_that_are_read_are_fetched(server, folder):
    more = {'optimizer.safetensors': b'x', 'pytorch_model.bin': b'x', 'README.md': b'x'}
    server.push(NAME, folder, **more, **{'training_state/step.json': b'{}'})
    read(NAME)
    assert not any(name in line for name in (*more, 'training_state') for line in server.requests)


def test_a_revision_is_that_commit(server, folder):
    first = server.push(NAME, folder)
    rewrite(folder / 'config.json', lambda value: value.update(chunk_size=40, n_action_steps=40))
    server.push(NAME, folder)
    assert read(NAME).config.chunk_size == 40
    assert read(f'{NAME}@{first}').config.chunk_size == 50


def test_a_folder_of_that_name_wins(server, folder):
    shutil.copytree(folder, NAME)
    assert read(NAME).source == ''
    assert server.requests == []


def test_a_commit_in_the_cache_needs_no_hub(server, folder):
    commit = server.push(NAME, folder)
    read(f'{NAME}@{commit}')
    server.requests.clear()
    assert read(f'{NAME}@{commit}').source == f'{NAME}@{commit}'
    assert server.requests == []


@pytest.mark.parametrize('how', ['down', 'offline'])
def test_without_the_hub_the_snapshot_in_the_cache_is_used_and_dated(
    server, folder, monkeypatch, how
):
    commit, lines = server.push(NAME, folder), []
    read(NAME)
    if how == 'offline':
        monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', True)
    server.broken = how == 'down'
    assert read(NAME, lines).source == f'{NAME}@{commit}'
    assert 'the hub does not answer' in lines[0] and 'in the cache is used' in lines[0]


def test_without_the_hub_and_without_a_snapshot_it_is_refused(server, folder, monkeypatch):
    server.push(NAME, folder)
    monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', True)
    with pytest.raises(CheckpointError, match='no complete snapshot is in the cache; connect'):
        read(NAME)
    assert server.requests == []


def test_a_full_disk_is_not_an_absent_hub(server, folder, monkeypatch):
    server.push(NAME, folder)

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(file_download, 'http_get', full)
    with pytest.raises(
        CheckpointError, match='cannot be written .*No space left.*free some space'
    ):
        read(NAME)


def test_an_unknown_name_is_neither_folder_nor_repository(server):
    with pytest.raises(CheckpointError, match='does not exist here; the hub has no repository'):
        read('team/amr')


def test_an_unknown_revision_is_refused(server, folder):
    server.push(NAME, folder)
    with pytest.raises(CheckpointError, match='has no revision v9; name a branch'):
        read(f'{NAME}@v9')


def test_a_gated_repository_is_refused_with_the_remedy(server, folder):
    server.push(NAME, folder)
    server.gated.add(NAME)
    with pytest.raises(CheckpointError, match='is gated; accept its licence on the hub'):
        read(NAME)


def test_a_repository_without_a_part_is_refused_by_the_name_of_the_file(server, folder):
    (folder / PRE).unlink()
    server.push(NAME, folder)
    with pytest.raises(CheckpointError, match=PRE.replace('.', r'\.')):
        read(NAME)


@pytest.mark.parametrize('path', ['./team/arm', '/team/arm', 'team/arm.safetensors', 'a/b/c'])
def test_what_can_only_be_a_path_is_not_looked_up(server, path):
    with pytest.raises(CheckpointError, match='does not exist'):
        read(path)
    assert server.requests == []


def named_tokenizer(tmp_path):
    """Return a folder without a tokenizer, whose preprocessor names one."""
    folder = copied(LEROBOT, tmp_path / 'policy')

    def change(value):
        (one,) = (s for s in value['steps'] if s['registry_name'] == 'tokenizer_processor')
        one.pop('artifacts', None)
        one['config']['tokenizer_name'] = 'words/gemma'

    rewrite(folder / PRE, change)
    shutil.move(folder / 'tokenizer', tmp_path / 'words')
    return folder


def test_a_tokenizer_that_the_files_name_is_fetched(server, tmp_path):
    folder = named_tokenizer(tmp_path)
    server.push('words/gemma', tmp_path / 'words')
    shutil.rmtree(tmp_path / 'words')
    assert opened(folder).tokenizer().vocab_size == opened(LEROBOT).tokenizer().vocab_size


def test_a_gated_tokenizer_is_refused_with_the_remedy(server, tmp_path):
    folder = named_tokenizer(tmp_path)
    server.push('words/gemma', tmp_path / 'words')
    server.gated.add('words/gemma')
    with pytest.raises(CheckpointError, match='names words/gemma.*is gated; accept its licence'):
        opened(folder)


def test_the_config_of_a_language_model_that_the_files_name_is_fetched(server, folder):
    shutil.move(folder / 'vlm', folder.parent / 'vlm')
    rewrite(folder / 'config.json', lambda value: value.update(vlm_model_name='somewhere/vlm'))
    server.push('somewhere/vlm', folder.parent / 'vlm')
    assert opened(folder).config == opened(SMOLVLA).config


def test_a_tokenizer_in_a_folder_that_the_files_name_is_read(server, tmp_path, monkeypatch):
    folder = named_tokenizer(tmp_path)
    words = tmp_path / 'words'

    def change(value):
        (one,) = (s for s in value['steps'] if s['registry_name'] == 'tokenizer_processor')
        one['config']['tokenizer_name'] = str(words)

    rewrite(folder / PRE, change)
    assert opened(folder).tokenizer().vocab_size == opened(LEROBOT).tokenizer().vocab_size
    assert server.requests == []
    shutil.rmtree(words)
    with pytest.raises(CheckpointError, match='it has no tokenizer, and names'):
        opened(folder)
