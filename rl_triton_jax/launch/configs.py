"""Which tile a kernel works on: pure functions of the plan."""

from dataclasses import dataclass

from rl_triton_jax.launch.plan import Plan


@dataclass(frozen=True)
class Config:
    """A launch: which kernel, its block sizes, how many programs of how many warps, and how many
    actions a tile holds."""

    kernel: str
    constants: tuple[tuple[str, int], ...]
    programs: int
    warps: int
    actions: int = 1

    def tile(self, plan: Plan) -> Plan:
        """The plan, with what it says of this configuration's tiles."""
        sizes = dict(self.constants)
        if self.kernel == "columns":
            return plan.tiled(sizes["S"], sizes["S"] * sizes["WT"], sizes["BN"], self.actions)
        return plan.tiled(1, sizes["BT"], sizes["BN"], self.actions)


def _power_of_2(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def choose(plan: Plan) -> Config:
    """The configuration for a plan."""
    if plan.actions > 1:
        return _tables(plan)
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


TABLE_TILE = 4096
"""How many numbers of a table a tile holds."""


def _tables(plan: Plan) -> Config:
    actions = min(32, _power_of_2(plan.actions))
    if plan.columns:
        lanes = min(16, _power_of_2(plan.lanes))
        block = min(TABLE_TILE // (actions * lanes), _power_of_2(plan.length))
        sizes = (("S", 1), ("WT", block), ("BN", lanes))
        programs = plan.outer_size * -(-plan.lanes // lanes)
    else:
        block = min(TABLE_TILE // actions, _power_of_2(plan.length))
        lanes = min(TABLE_TILE // (actions * block), _power_of_2(plan.outer_size))
        sizes = (("BT", block), ("BN", lanes))
        programs = -(-plan.outer_size // lanes)
    warps = min(max(block * lanes * actions // 512, 1), 8)
    return Config("columns" if plan.columns else "rows", sizes, programs, warps, actions)
