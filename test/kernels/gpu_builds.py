"""Kernels compiled for a card that is not there, and what they take of it."""

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

PTXAS = Path(triton.__file__).parent / 'backends/nvidia/bin/ptxas'
HALF, EXACT, COUNT = '*bf16', '*fp32', '*i32'
STRIDE = re.compile(r'stride_\w+|\w+_(layer|slot|row|token|head)')


class Build(NamedTuple):
    """shared: bytes of a block. registers: of a thread. spilled: bytes, for want of registers."""

    shared: int
    registers: int
    spilled: int


def build(function, fixed, types, arch, folder, **options) -> Build:
    """As a call on aligned tensors, whose strides are multiples of 16, would compile it.

    types: of arguments by name; of all others, constexpr where fixed, else i32.
    """
    names = function.arg_names
    known = {name: 'constexpr' if name in fixed else types.get(name, 'i32') for name in names}
    loose = {p.name for p in function.params if p.do_not_specialize_on_alignment}
    aligned = [
        i
        for i, name in enumerate(names)
        if name not in loose and (known[name][0] == '*' or STRIDE.fullmatch(name))
    ]
    source = ASTSource(
        function,
        known,
        {(names.index(name),): value for name, value in fixed.items()},
        {(i,): [['tt.divisibility', 16]] for i in aligned},
    )
    made = triton.compile(source, target=GPUTarget('cuda', arch, 32), options=options)
    ptx = Path(folder, 'kernel.ptx')
    ptx.write_text(made.asm['ptx'])
    name = re.search(r'^\.target (\w+)', made.asm['ptx'], re.MULTILINE)[1]
    command = [PTXAS, '-v', f'--gpu-name={name}', ptx, '-o', Path(folder, 'kernel.cubin')]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    registers = int(re.search(r'Used (\d+) registers', said)[1])
    return Build(
        made.metadata.shared, registers, int(re.search(r'(\d+) bytes spill stores', said)[1])
    )
