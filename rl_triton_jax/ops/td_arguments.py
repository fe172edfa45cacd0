"""The arguments that the temporal-difference estimators share, checked against each other."""

from jax.typing import ArrayLike

from rl_triton_jax.ops.arguments import Arguments


def add_flags(
    x: Arguments,
    terminated: ArrayLike | None,
    truncated: ArrayLike | None,
    last_terminated: ArrayLike | None,
    mask: ArrayLike | None,
) -> None:
    """Adds the flags, step-aligned unless `last_terminated` is given."""
    x.flags("terminated", terminated)
    x.flags("truncated", truncated)
    x.flags("mask", mask)
    x.last_flag("last_terminated", last_terminated)
    if last_terminated is None:
        return
    if terminated is None:
        x.refuse("last_terminated", "no terminated beside it", "both: they are one series of flags")
    for name, other in (("truncated", truncated), ("mask", mask)):
        if other is not None:
            x.refuse(
                f"last_terminated and {name}",
                "both",
                f"step-aligned flags beside {name}: shift terminated by one row yourself",
            )


def add_successors(
    x: Arguments,
    *,
    values: ArrayLike | None,
    bootstrap_value: ArrayLike | None,
    next_values: ArrayLike | None,
    truncated: ArrayLike | None,
    on_truncation: str,
    only_successors: bool = False,
) -> str:
    """Adds the values and what follows each row, given in exactly one way; returns which.

    `only_successors`: the values are not read for themselves, so not beside `next_values`.
    """
    x.choice("on_truncation", on_truncation, ("bootstrap", "drop"))
    read = not only_successors or next_values is None
    extended = x.values("values", values, read=read) if values is not None else False
    ways = {
        "bootstrap_value": bootstrap_value is not None,
        "next_values": next_values is not None,
        "values with a row more": extended,
    }
    given = [way for way, there in ways.items() if there]
    if len(given) != 1:
        x.refuse(
            "bootstrap_value and next_values",
            " and ".join(given) or "neither",
            "exactly one of bootstrap_value, next_values, or values with a row more",
        )
    if truncated is not None and on_truncation == "bootstrap" and next_values is None:
        x.refuse(
            "truncated",
            f"{given[0]} beside it",
            "next_values (the next row's value is the reset state's), or on_truncation='drop'",
        )
    x.per_lane("bootstrap_value", bootstrap_value)
    x.rows("next_values", next_values)
    if next_values is not None:
        return "next_values"
    return "bootstrap_value" if values is None else "values"
