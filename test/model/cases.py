"""Folders of recorded parity cases, and helpers to open, copy and change them."""

import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from embodied_kv.model.checkpoints.open import open_checkpoint
from embodied_kv.model.files import read_json
from embodied_kv.model.parity.cases import openpi_facts, widths
from embodied_kv.robots.declared import Declared

DATA = Path(__file__).parents[1] / 'data'
LEROBOT = DATA / 'e2e_lerobot_quantiles'
LIBERO = DATA / 'e2e_openpi_libero'
ALOHA = DATA / 'e2e_openpi_aloha'
PI0 = DATA / 'e2e_lerobot_pi0'
JAX_DROID = DATA / 'e2e_openpi_jax_pi05_droid'
JAX_ALOHA = DATA / 'e2e_openpi_jax_pi0_aloha'  # pi0
CASES = LEROBOT, LIBERO, ALOHA
SMOLVLA = DATA / 'e2e_lerobot_smolvla'
FAMILIES = PI0, JAX_DROID, JAX_ALOHA, SMOLVLA
PRE, POST = 'policy_preprocessor.json', 'policy_postprocessor.json'
STATE_FILES = {
    PRE: 'policy_preprocessor_step_3_normalizer_processor.safetensors',
    POST: 'policy_postprocessor_step_0_unnormalizer_processor.safetensors',
}
WIDTHS = widths(read_json(LEROBOT / 'case.json')['dims'])  # of all CASES


def declared(folder):
    """Return the facts that a contract would declare for a recorded case."""
    facts = folder / 'facts.json'
    return openpi_facts(read_json(facts))[1] if facts.is_file() else Declared(fps=30.0)


def opened(folder, contract=None):
    """Return the checkpoint of a recorded case, or of a copy of it."""
    return open_checkpoint(folder, contract or declared(folder), WIDTHS)


def copied(folder, to):
    """Copy a folder without its recorded tensors, so that it may be changed; return the copy."""
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns('case.safetensors'))
    return to


def rewrite(path, change):
    """Apply `change(value)` to a JSON file in place."""
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def retensor(path, change):
    """Apply `change(tensors)` to a safetensors file in place."""
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    change(tensors)
    save_file(tensors, path)


def step(value, name):
    """Return the settings of a step of a processor file."""
    return next(s for s in value['steps'] if s['registry_name'] == name)['config']
