"""Which tile a kernel works on: pure functions of the plan."""

from dataclasses import dataclass

from rl_triton_jax.launch.plan import Plan


@dataclass(frozen=True)
class Config:
    """A launch: which kernel, its block sizes, and how many programs of how many warps."""

    kernel: str
    constants: tuple[tuple[str, int], ...]
    programs: int
    warps: int

    def tile(self, plan: Plan) -> Plan:
        """The plan, with what it says of this configuration's tiles."""
        sizes = dict(self.constants)
        if self.kernel == "columns":
            return plan.tiled(sizes["S"], sizes["S"] * sizes["WT"], sizes["BN"])
        return plan.tiled(1, sizes["BT"], sizes["BN"])


def _power_of_2(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def choose(plan: Plan) -> Config:
    """The configuration for a plan."""
    return _columns(plan) if plan.columns else _rows(plan)


FEW_PROGRAMS = 64
"""With fewer programs than this, a program takes long blocks of few lanes."""


def _columns(plan: Plan) -> Config:
    few = plan.outer_size * plan.lanes < 16 * FEW_PROGRAMS
    lanes, fold, chunks, warps = (8, 16, 64, 16) if few else (16, 8, 32, 8)
    if plan.length <= 64:
        lanes = 32
    lanes = min(lanes, _power_of_2(plan.lanes))
    fold = min(fold, _power_of_2(plan.length))
    chunks = min(chunks, _power_of_2(-(-plan.length // fold)))
    warps = min(max(lanes * chunks // 32, 1), warps)
    programs = plan.outer_size * -(-plan.lanes // lanes)
    return Config("columns", (("S", fold), ("WT", chunks), ("BN", lanes)), programs, warps)


def _rows(plan: Plan) -> Config:
    block = min(2048, _power_of_2(plan.length))
    lanes = min(max(512 // block, 1), _power_of_2(plan.outer_size))
    a_thread = 4 if block <= 128 else 8
    warps = min(max(block * lanes // (32 * a_thread), 1), 8)
    programs = -(-plan.outer_size // lanes)
    return Config("rows", (("BT", block), ("BN", lanes)), programs, warps)
