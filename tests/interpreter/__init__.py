"""The kernels in Triton's interpreter, behind the library's own launch: no GPU, no compiler.

`python -m tests.interpreter GROUP` runs the checks of one group of `GROUPS` and names those that
fail; without GROUP it lists them. It wants a process of its own, with TRITON_INTERPRET=1 set
before triton is imported: that makes every kernel of the process an interpreted one and patches
`triton.language`.

Eager calls of the library run a kernel at once, since the primitives' eager rule is the launch
itself; under `jit` and the like it is a custom call in the program that JAX compiles for the CPU.
In both, results hold NaN (or the smallest integer) before the kernel starts, so an element that it
does not write shows up.
"""

import os

if os.environ.get("TRITON_INTERPRET") != "1":
    raise ImportError("set TRITON_INTERPRET=1 first, in a process of its own")
