"""What the checks are made of."""

import jax
import jax.numpy as jnp
from jax import lax

from tests.transforms.cases import BY_LANE, COEFFICIENTS, FLAGS


def floats(args):
    """The differentiable arguments."""
    return {n: x for n, x in args.items() if jnp.issubdtype(x.dtype, jnp.floating)}


def differentiable(op, args):
    """The operation as a function of its float arguments, and those."""
    return lambda moving: op(args | moving), floats(args)


def total(tree):
    """A scalar, not linear, that weighs rows apart and is a sum over lanes."""

    def weigh(x):
        rows = jnp.arange(len(x), dtype=x.dtype)
        weights = jnp.cos(2 + rows).reshape(-1, *(1,) * (x.ndim - 1))
        return jnp.sum(weights * jnp.sin(x))

    return sum(map(weigh, jax.tree.leaves(tree)))


def direction(tree):
    """A tangent or cotangent without structure."""
    return jax.tree.map(
        lambda x: jnp.cos(2 + jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape), tree
    )


def loss(op):
    return lambda args: total(op(args))


def gradient(op, args):
    f, moving = differentiable(op, args)
    return jax.grad(loss(f))(moving)


def both(op, args):
    """Value and gradient."""

    def of(moving):
        out = op(args | moving)
        return total(out), out

    gradients, out = jax.grad(of, has_aux=True)(floats(args))
    return out, gradients


def along(f):
    """The derivative of a scalar function along a fixed direction, in reverse mode."""

    def derivative(x):
        products = jax.tree.map(jnp.vdot, jax.grad(f)(x), direction(x))
        return sum(jax.tree.leaves(products))

    return derivative


def leader(args):
    """The argument that has the results' shape."""
    return next(n for n in ("rewards", "x", "b") if n in args)


def knobs(args):
    """Two arguments, those that hyperparameter searches map over where there are such."""
    first, second, *_ = (n for n in ("gamma", "lambda_", "a", "init", "terminated") if n in args)
    return first, second


def by_few(op, args):
    """The loss as a function of an array and the knobs, and those."""
    few = {n: args[n] for n in (leader(args), *knobs(args))}
    return lambda few: loss(op)(args | few), few


def even(args):
    """Every other argument."""
    return sorted(args)[::2]


def odd(args):
    """The others."""
    return sorted(args)[1::2]


def copies(args, count, names=None, axis=0):
    """Several different versions of the arguments, or of those named, stacked along an axis."""

    def stack(name, x):
        if name in (*FLAGS, "mask"):
            versions = [jnp.roll(x, i, 0) for i in range(count)]
        else:
            versions = [x * (1 - 0.1 * i) for i in range(count)]
        return jnp.stack(versions, min(axis, x.ndim))

    return {n: stack(n, x) if names is None or n in names else x for n, x in args.items()}


def vmapped(op, args, names=None, **options):
    """Over a new first axis of the named arguments, or of all."""
    return jax.vmap(op, ({n: 0 if names is None or n in names else None for n in args},), **options)


def hard(args, dtype):
    """Flags that are bool or int: set where they are not 0."""
    return {n: (3 * (x > 0.5)).astype(dtype) if n in FLAGS else x for n, x in args.items()}


def one_for_all_lanes(args):
    return {n: x[0] if n in BY_LANE else x for n, x in args.items()}


def spread(args, shape):
    """Coefficients by lane, by time, or full; without init, which wants them constant in time."""
    rows = args[leader(args)]
    like = {"lane": rows[0], "time": rows[:, :1], "full": rows}[shape]
    kept = {n: x for n, x in args.items() if n != "init" or shape == "lane"}
    return {n: 0.8 + 0.1 * direction(like) if n in COEFFICIENTS else x for n, x in kept.items()}


def repeated(op, args, step=lambda f: f):
    """A loop body that feeds the first result back as the first argument, and its start."""
    body = step(lambda x: jnp.tanh(jax.tree.leaves(op(args | {leader(args): x}))[0]))
    return body, args[leader(args)]


def scanned(op, step=lambda f: f, **options):
    """Three rounds of that."""

    def f(args):
        body, start = repeated(op, args, step)
        return lax.scan(lambda x, _: (body(x), None), start, length=3, **options)[0]

    return f
