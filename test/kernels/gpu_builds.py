"""Compile kernels for a card that is not present, and report the resources that they take."""

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from embodied_kv.kernels.tiles import LIMITS

REGISTERS = 65_536  # per multiprocessor, for all compute capabilities from 5.0 to 9.0
PTXAS = Path(triton.__file__).parent / 'backends/nvidia/bin/ptxas'
HALF, EXACT, COUNT = '*bf16', '*fp32', '*i32'
STRIDE = re.compile(r'stride_\w+|\w+_(layer|slot|row|token|head)')


class Build(NamedTuple):
    """shared: bytes per block. registers: per thread. spilled: bytes, for lack of registers."""

    shared: int
    threads: int
    registers: int
    spilled: int

    def fits(self, card, spill=0) -> bool:
        """Return whether a block can be launched on the card and spills at most `spill` bytes."""
        return (
            self.shared <= LIMITS[card]
            and self.threads * self.registers <= REGISTERS
            and self.spilled <= spill
        )


def build(function, fixed, types, arch, folder, **options) -> Build:
    """Compile a kernel as for a call on aligned tensors whose strides are multiples of 16.

    types: of arguments by name; the others are constexpr if they are in `fixed`, else i32.
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
    registers, spilled = (
        int(re.search(found, said)[1])
        for found in (r'Used (\d+) registers', r'(\d+) bytes spill stores')
    )
    return Build(made.metadata.shared, 32 * made.metadata.num_warps, registers, spilled)
