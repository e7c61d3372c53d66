"""Weights of the test beds and of the demo."""

from __future__ import annotations

from pathlib import Path

from embodied_kv.model.checkpoints.own import bundled

ASSETS = Path(__file__).resolve().parents[1] / 'assets'


def weights_of(preset: str) -> Path:
    """Return the folder of the weights of a preset: a test bed's, or the demo's.

    Raises:
        ValueError: Neither exists.
    """
    own = ASSETS / preset
    return own if own.is_dir() else bundled(preset)
