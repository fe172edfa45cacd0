"""Which tile a kernel works on: pure functions of the plan."""

from dataclasses import dataclass

from rl_triton_jax.launch.plan import Plan, power_of_2


@dataclass(frozen=True)
class Config:
    """A launch: which kernel, its block sizes, and how many programs of how many warps.

    Time may be split over `parts` programs, which pass the carry on; `actions` is how many of them
    a tile of a table holds; `registers` is how many a thread has at most.
    """

    kernel: str
    constants: tuple[tuple[str, int], ...]
    programs: int
    warps: int
    registers: int
    actions: int
    parts: int

    def tile(self, plan: Plan) -> Plan:
        """The plan, with what it says of this configuration's tiles."""
        sizes = dict(self.constants)
        block = sizes["S"] * sizes["WT"] if self.kernel == "columns" else sizes["BT"]
        return plan.tiled(block, sizes["BN"], self.warps, actions=self.actions, parts=self.parts)


REGISTERS, FEWER_REGISTERS = 128, 64
"""So many 16 warps have, and two programs of 16 warps that share a multiprocessor. Without a bound
the assembler spills, at fewer."""


def columns(
    plan: Plan,
    fold: int,
    chunks: int,
    lanes: int,
    warps: int,
    registers: int = REGISTERS,
    *,
    split: bool,
    actions: int = 1,
) -> Config:
    """`chunks` chunks of `fold` rows of `lanes` lanes a program; no larger than the arrays are."""
    lanes = min(lanes, power_of_2(plan.lanes))
    asked = fold
    most = min(2 * fold, max(fold, 16)) if len(plan.with_rows) >= 4 else 2 * fold
    fold, chunks = _chunks(plan.length, fold, chunks, most)
    warps = min(max(lanes * chunks * actions // 32, 1), warps)
    if fold > asked or plan.length % (fold * chunks):
        registers = REGISTERS  # more rows, or some that might not exist, take more
    parts = _parts(plan, fold * chunks) if split else 1
    programs = parts * plan.outer_size * -(-plan.lanes // lanes)
    sizes = (("S", fold), ("WT", chunks), ("BN", lanes))
    return Config("columns", sizes, programs, warps, registers, actions, parts)


def _chunks(length: int, fold: int, chunks: int, most: int) -> tuple[int, int]:
    """For a window that one block holds: as few rows as that takes, with none too many if chunks
    can be even, of so many rows at most; rows that might not exist cost instructions."""
    if length > fold * chunks:
        return fold, chunks
    chunks = power_of_2(-(-length // fold))
    for fewer in (chunks, chunks // 2, chunks // 4):
        if fewer and length % fewer == 0 and length // fewer <= most:
            return length // fewer, fewer
    return -(-length // chunks), chunks


def rows(
    plan: Plan, block: int, lanes: int, warps: int, *, split: bool, actions: int = 1
) -> Config:
    """`block` rows of `lanes` lanes a program; no larger than the arrays are."""
    block = min(block, power_of_2(plan.length))
    lanes = min(lanes, power_of_2(plan.outer_size))
    warps = min(max(block * lanes * actions // 32, 1), warps)
    parts = _parts(plan, block) if split else 1
    programs = parts * -(-plan.outer_size // lanes)
    sizes = (("BT", block), ("BN", lanes))
    return Config("rows", sizes, programs, warps, REGISTERS, actions, parts)


def _parts(plan: Plan, block: int) -> int:
    """How many blocks there are, if each can be a program of its own; otherwise 1."""
    blocks = -(-plan.length // block)
    return blocks if plan.can_split else 1


def choose(plan: Plan) -> Config:
    """The configuration for a plan."""
    if plan.actions > 1:
        return _tables(plan)
    return _columns(plan) if plan.columns else _rows(plan)


FEW, MANY = 1024, 1 << 22
"""With fewer lanes than FEW, the GPU is not busy unless time is split, which takes a memset; with
as many rows of lanes as MANY, or half as many of four operands or in long windows, memory is, and
programs that share time keep it busy with fewer registers."""


def _columns(plan: Plan) -> Config:
    lanes = plan.outer_size * plan.lanes
    if plan.length <= 64:
        tile = (8, 8, 32 if plan.length <= 32 or lanes > 2 * FEW else 16, 4)
    elif not plan.can_split and len(plan.with_rows) >= 4:
        tile = _of_wide_rows(plan, lanes)
    elif lanes < FEW:
        tile = _of_few_lanes(plan, lanes)
    else:
        tile = _of_many_lanes(plan, lanes * plan.length)
    return columns(plan, *tile, split=True)


def _of_wide_rows(plan: Plan, lanes: int) -> tuple[int, ...]:
    """With a mask or in float64, a thread has registers for 8 numbers of so many operands."""
    if 128 < plan.length <= 512 and lanes < FEW:
        return 8, 64, 8, 16
    if 128 < plan.length <= 256:
        return 8, 32, 16, 16
    return 8, 16, 16, 8


def _of_few_lanes(plan: Plan, lanes: int) -> tuple[int, ...]:
    if 128 < plan.length <= 512:
        return 16, 32, 8, 8  # what a split saves is less than its memset
    if plan.can_split and 512 < plan.length <= 1024 and lanes <= FEW // 4:
        return 4, 16, 16, 8  # of so few numbers, a program should have fewer
    return _of_long_windows(plan, lanes * plan.length)


def _of_many_lanes(plan: Plan, size: int) -> tuple[int, ...]:
    if plan.lanes < 8:
        return 2, 64, plan.lanes, 4  # the rows of a thread lie side by side
    streams = len(plan.with_rows)
    many = MANY // 2 if streams >= 4 or plan.length > 512 else MANY
    registers = _registers(plan)
    if plan.length <= 128:
        if 4 * size <= MANY:
            return 8, 16, 16, 8
        fold = 8 if streams == 3 or plan.length % 16 else 16
        return fold, 128 // fold, 32, 8, registers
    if plan.can_split and size >= many:
        return _of_streams(plan, streams)
    if plan.length <= 256:
        if 2 * size >= MANY and registers == FEWER_REGISTERS:
            return 16, 16, 32, 16, registers
        return 16, 16, 16, 8, registers
    if plan.length <= 320:
        return 20, 16, 16, 8  # of 32 chunks, a third would be empty
    if plan.length <= 512:
        return 16, 32, 16, 16, registers
    return _of_long_windows(plan, size)


def _of_streams(plan: Plan, streams: int) -> tuple[int, ...]:
    """The fewer operands have rows, the more rows a program has of them."""
    if streams == 3 and 256 < plan.length <= 512:
        return 8, 8, 32, 4  # up to 8 parts tell each other without a scan
    if streams == 2 and plan.length > 1024:
        return 32, 4, 32, 4
    return 16, 8 if streams < 3 else 4, 32, 4


def _of_long_windows(plan: Plan, size: int) -> tuple[int, ...]:
    if 2 * size >= MANY and _registers(plan) == FEWER_REGISTERS:
        return 16, 8, 32, 8, FEWER_REGISTERS
    if plan.can_split and (plan.length <= 2048 or 2 * size >= MANY):
        return 16, 8, 16, 4
    return 16, 16, 16, 8


def _registers(plan: Plan) -> int:
    """Fewer are enough where a thread keeps three numbers of a row until results are written."""
    kept = len(plan.with_rows) + plan.is_vjp
    return FEWER_REGISTERS if plan.can_split and kept <= 3 else REGISTERS


def _rows(plan: Plan) -> Config:
    few = plan.outer_size < FEW
    if few and plan.length > 2048 and not plan.heavy:
        tile = (4096, 1, 8) if plan.outer_size >= 16 else (8192, 1, 16)
        return rows(plan, *tile, split=True)
    if plan.length > 2048 and (plan.can_split or plan.heavy):
        return rows(plan, 1024, 1, 4, split=True)
    if plan.length > 512 and plan.heavy and not few:
        return rows(plan, 1024, 1, 4, split=True)
    block = min(2048, power_of_2(plan.length))
    lanes = max(512 // block, 1)
    a_thread = 4 if block <= 1024 else 8
    return rows(plan, block, lanes, block * lanes // (32 * a_thread), split=False)


TABLE_TILE, MOST_ACTIONS = 1024, 4
"""How many numbers of a table a tile holds, of so many actions; half as many of few rows and lanes
that have more actions than that."""

MOST_WRITTEN = 16
"""So many actions where tables are written, too, which is slow in small pieces."""


def _tables(plan: Plan) -> Config:
    writes = max(plan.widths) > 1
    actions = min(MOST_WRITTEN if writes else MOST_ACTIONS, power_of_2(plan.actions))
    room = TABLE_TILE // actions
    if plan.columns:
        lanes = 8
        size = plan.outer_size * plan.lanes * plan.length
        if plan.actions > actions and 16 * size < MANY and not writes:
            room //= 2
            if plan.length <= 128:
                lanes = 4  # so that one block still holds the window
        lanes = min(lanes, power_of_2(plan.lanes))
        return columns(plan, 4, room // lanes, lanes, 8, split=True, actions=actions)
    block = min(room, power_of_2(plan.length))
    return rows(plan, block, room // block, 8, split=True, actions=actions)
