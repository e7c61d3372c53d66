"""Off-screen OpenGL for MuJoCo: finds a backend that works here.

Knows EGL and OSMesa. Does not know what is drawn.
"""

from __future__ import annotations

import ctypes.util
import importlib
import os
from contextlib import suppress

_LIBRARIES = {'egl': 'EGL', 'osmesa': 'OSMesa'}


def backend() -> str:
    """'egl' or 'osmesa': what MUJOCO_GL asks for, else the first whose library is installed.

    Raises RuntimeError that says what to install when there is neither.
    """
    asked = os.environ.get('MUJOCO_GL', '').lower().strip()
    if asked in _LIBRARIES:
        return asked
    for name, library in _LIBRARIES.items():
        if ctypes.util.find_library(library):
            return name
    raise RuntimeError(
        'no off-screen OpenGL for the cameras: run `apt-get install -y libegl1 libosmesa6`'
    )


def open_context(width: int, height: int):
    """A current GL context of at least that size; the caller frees it with `.free()`.

    Raises RuntimeError that names the backend and the remedy when it does not open.
    """
    name = backend()
    # Mesa and Triton bring an LLVM each: Triton, which torch loads late, has to be the first.
    with suppress(ImportError):
        importlib.import_module('triton')
    # Mesa's own threads cost more than they bring at camera size, and fight the policy for cores.
    os.environ.setdefault('LP_NUM_THREADS', '0')
    try:
        context = importlib.import_module(f'mujoco.{name}').GLContext(width, height)
        context.make_current()
    except (
        Exception
    ) as error:  # PyOpenGL raises ImportError, AttributeError, GLError… for one cause
        raise RuntimeError(
            f'off-screen OpenGL does not open with {name} ({type(error).__name__}): '
            'run `apt-get install -y libegl1 libosmesa6`, or set MUJOCO_GL to egl or osmesa'
        ) from error
    return context
