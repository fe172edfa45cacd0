"""What a kernel is compiled for: which operands there are and how each is laid out."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from rl_triton_jax.launch.layouts import ONE_ROW, Layout, Shape, layouts


def power_of_2(n: int) -> int:
    """The next one."""
    return 1 << max(n - 1, 0).bit_length()


LARGEST_GROUP = 64
"""Parts of a window that tell each other directly; more of them do it by groups."""


@dataclass(frozen=True, repr=False)
class Plan:
    """The compile-time argument of a kernel.

    `family` names its terms, `kind` the estimator; `rows` and `widths` say how many rows a result
    has, and how many numbers each of them; `behind` pairs operands with those that are read as the
    row behind their last; `holds` says that coefficients wait until all is read; `outer` and
    `inner` are the sizes of the merged axes, `lanes` their number along inner; `columns` says that
    the tile lies along inner and `can_split` that time may be split over programs. Of the tile that
    a configuration chose: `even` says that all rows of every tile exist, `whole` that all lanes do,
    `action_block` is how many actions it holds, `blocks` how many of them time takes, and `parts`
    over how many programs it is split, in groups of `group`; each of them reads so many of the
    others' `words` in each of so many `places`.
    """

    kind: str
    family: str
    is_vjp: bool
    operands: tuple[str, ...]
    layouts: tuple[Layout, ...]
    results: tuple[str, ...]
    rows: tuple[int, ...]
    widths: tuple[int, ...]
    data: tuple[str, ...]
    behind: tuple[tuple[str, str], ...]
    holds: bool
    can_split: bool
    length: int
    outer: Shape
    inner: Shape
    reverse: bool
    dtype: Any
    index: Any
    largest_log: float
    successor: str
    drops: bool
    mixed: bool
    starts: bool
    longer: bool
    actions: int
    action_block: int = 1
    blocks: int = 1
    parts: int = 1
    group: int = 1
    places: int = 1
    words: int = 1
    even: bool = False
    whole: bool = False

    def __repr__(self) -> str:
        """Short: Triton puts it into the name of every function that takes a plan, and the host
        hashes all that text at every launch."""
        numbers = repr([getattr(self, field.name) for field in fields(self)])
        return f"Plan{hashlib.sha256(numbers.encode()).hexdigest()[:12]}"

    @property
    def outer_size(self) -> int:
        """How many indices there are along outer."""
        return math.prod(self.outer)

    @property
    def lanes(self) -> int:
        """How many indices there are along inner."""
        return math.prod(self.inner)

    @property
    def with_rows(self) -> tuple[str, ...]:
        """The operands that hold a number for every row."""
        return tuple(name for name, layout in self._numbers() if layout.time != 0)

    @property
    def shared(self) -> tuple[str, ...]:
        """The operands that hold a number for all rows."""
        return tuple(name for name, layout in self._numbers() if layout.time == 0)

    def _numbers(self) -> list[tuple[str, Layout]]:
        """The operands that are no tables and belong to no single row."""
        pairs = zip(self.operands, self.layouts, strict=True)
        return [(name, x) for name, x in pairs if x.width == 1 and name not in ONE_ROW]

    @property
    def heavy(self) -> bool:
        """Whether a row keeps more numbers than most."""
        return self.kind == "vtrace"

    @property
    def columns(self) -> bool:
        """Whether lanes, not time, lie side by side in memory."""
        return self.lanes > 1

    def tiled(self, block: int, lanes: int, warps: int, *, actions: int, parts: int) -> "Plan":
        """The plan for tiles of so many rows and lanes, tables read so many actions at a time, and
        time split into parts."""
        across = self.lanes if self.columns else self.outer_size
        group = parts if parts <= LARGEST_GROUP else power_of_2(math.isqrt(parts - 1) + 1)
        split = replace(self, parts=parts, group=group)
        words = max(group, split.groups)
        # a few are read one after the other; of more, every thread reads others
        places = min(power_of_2(words), max(32 * warps // lanes, 1)) if words > 8 else 1
        in_a_row = 8 if places == 1 else 4  # they take registers
        return replace(
            split,
            even=self.length % block == 0,
            whole=across % lanes == 0,
            action_block=actions,
            blocks=-(-self.length // block),
            places=places,
            words=min(power_of_2(-(-words // places)), in_a_row),
        )

    @property
    def groups(self) -> int:
        """Of parts of time that tell each other directly."""
        return -(-self.parts // self.group)

    @property
    def direction(self) -> int:
        """The step in time from a row to the one that is computed next."""
        return -1 if self.reverse else 1


FAMILIES = {
    "gae": "errors",
    "vtrace": "errors",
    "retrace": "errors",
    "lambda_returns": "returns",
    "discounted_returns": "returns",
    "eligibility_traces": "traces",
    "episodic_prefix_sum": "sum",
    "linear_recurrence": "linear",
}
"""Estimator -> the terms that its kernel uses."""

ESTIMATORS = {"retrace_from_policy": "retrace"}
"""Primitive -> the estimator, where it is known by another name."""

BEHIND = {"values": "bootstrap_value", "terminated": "last_terminated"}
"""Operands, and those that hold what follows their last row."""

DATA = {"errors": "rewards", "returns": "rewards", "traces": "x", "sum": "x", "linear": "b"}
"""Family -> its first data operand."""


def make_plan(
    name: str,
    shapes: Mapping[str, Shape],
    types: Mapping[str, Any],
    results: Mapping[str, Shape],
    *,
    axis: int,
    has_actions: bool,
    dtype: Any,
    index: tuple[Any, Any],
    largest_log: float,
    holds: bool,
    can_split: bool,
    options: Mapping[str, Any],
) -> Plan:
    """The plan for one primitive, `<op>` or `<op>_vjp`.

    Args:
      name: of the primitive.
      shapes: of its operands, the first one with every row.
      types: of their numbers.
      results: their shapes.
      axis: where time is.
      has_actions: whether all shapes have an axis of actions behind all others.
      dtype: Triton's type of the accumulation.
      index: Triton's types of offsets for arrays of less than 2^31 elements, and of more.
      largest_log: what exp may be applied to without overflow.
      holds: whether coefficients wait until all is read.
      can_split: whether time may be split over programs.
      options: the primitive's other parameters.
    """
    kind, is_vjp = name.removesuffix("_vjp"), name.endswith("_vjp")
    kind = ESTIMATORS.get(kind, kind)
    family = FAMILIES[kind]
    length = next(iter(shapes.values()))[axis]
    widths = {}
    if has_actions:
        widths = {name: shape[-1] for name, shape in (*shapes.items(), *results.items())}
        shapes = {name: shape[:-1] for name, shape in shapes.items()}
    outer, inner, found = layouts(shapes, widths, axis, length)
    behind = tuple(
        (name, other)
        for name, other in BEHIND.items()
        if name in shapes and other in shapes and types[name] == types[other]
        if "mask" not in shapes  # which says which row is the last
    )
    forward_in_time = family in ("traces", "sum") or (family == "linear" and not options["reverse"])
    rows = tuple(shape[axis] for shape in results.values())
    wide = widths.values() or (1,)
    return Plan(
        kind=kind,
        family=f"{family}_vjp" if is_vjp else family,
        is_vjp=is_vjp,
        operands=tuple(shapes),
        layouts=found,
        results=tuple(results),
        rows=rows,
        widths=tuple(widths.get(name, 1) for name in results),
        data=(DATA[family],),
        behind=behind,
        holds=holds,
        can_split=can_split,
        length=length,
        outer=outer,
        inner=inner,
        reverse=forward_in_time == is_vjp,
        dtype=dtype,
        index=index[
            math.prod(outer) * max(length + 1, *rows) * math.prod(inner) * max(wide) >= 2**31
        ],
        largest_log=largest_log,
        successor=options.get("successor", ""),
        drops=options.get("on_truncation") == "drop",
        mixed=options.get("pg_bootstrap") == "mixed",
        starts=options.get("boundary") == "starts_at",
        actions=max(wide),
        longer=any(name == "values" and n > length for name, n in zip(results, rows, strict=True)),
    )
