"""Step folders of openpi in JAX, written by tensorstore in the layout of Orbax."""

import json
import shutil

import numpy as np
import tensorstore
import torch

from embodied_kv.model.checkpoints.orbax import Leaves


def tree_of(step):
    """Return the arrays of a step folder by path, in the dtypes of the folder."""
    leaves = Leaves(step / 'params')
    return {name: leaves.read(name) for name in leaves.names}


def write_step(step, to, tree, value=True):
    """Copy a step folder with other arrays; `value` is whether their keys end with `value`."""
    ignored = shutil.ignore_patterns('params', 'case.safetensors')
    shutil.copytree(step, to, ignore=ignored)
    params, listed = to / 'params', {}
    base, change = params.as_uri(), tensorstore.Transaction()
    for name, array in tree.items():
        key = ('params', *name.split('/'), *(['value'] if value else []))
        is_half = array.dtype == torch.bfloat16
        bits = array.view(torch.int16).numpy() if is_half else array.numpy()
        values = bits.view(tensorstore.bfloat16.numpy_dtype) if is_half else bits
        where = {'driver': 'ocdbt', 'base': base, 'path': '.'.join(key) + '/'}
        tensorstore.open(
            {'driver': 'zarr', 'kvstore': where},
            create=True,
            dtype=values.dtype,
            shape=values.shape,
            transaction=change,
        ).result().write(np.ascontiguousarray(values)).result()
        listed[str(key)] = {'key_metadata': [{'key': part, 'key_type': 2} for part in key]}
    change.commit_sync()
    about = {'tree_metadata': listed, 'use_zarr3': False}
    (params / '_METADATA').write_text(json.dumps(about))
    return to
