"""Derivatives, in both modes and every order."""

import jax
import jax.test_util

from tests.inputs import DATA
from tests.transforms.checks import EITHER, EVERY_CASE, PLAIN, check
from tests.transforms.pieces import (
    along,
    by_few,
    differentiable,
    direction,
    knobs,
    leader,
    loss,
    total,
)


@check("value_and_grad", cases=EITHER)
def _(op, args):
    f, moving = differentiable(op, args)
    return jax.value_and_grad(loss(f))(moving)


@check("jvp")
def _(op, args):
    f, moving = differentiable(op, args)
    return jax.jvp(f, (moving,), (direction(moving),))


@check("jvp by one argument alone", cases=EVERY_CASE)
def _(op, args):
    f, moving = differentiable(op, args)
    return {
        n: jax.jvp(lambda x, n=n: f(moving | {n: x}), (x,), (direction(x),))[1]
        for n, x in moving.items()
    }


@check("grad by one argument alone", expect=PLAIN, cases=EVERY_CASE)
def _(op, args):
    f, moving = differentiable(op, args)
    alone = {n: jax.grad(lambda x, n=n: loss(f)(moving | {n: x}))(x) for n, x in moving.items()}
    return op(args), alone


@check("gradient of one result alone", cases=("gae", "vtrace"))
def _(op, args):
    f, moving = differentiable(op, args)
    return [jax.grad(lambda x, i=i: total(f(x)[i]))(moving) for i in range(2)]


@check("vjp")
def _(op, args):
    f, moving = differentiable(op, args)
    out, vjp = jax.vjp(f, moving)
    return out, vjp(direction(out))


@check("jacfwd")
def _(op, args):
    f, moving = differentiable(op, args)
    return jax.jacfwd(f)(moving)


@check("jacrev", expect="jacfwd")
def _(op, args):
    f, moving = differentiable(op, args)
    return jax.jacrev(f)(moving)


@check("hessian")
def _(op, args):
    f, few = by_few(op, args)
    return jax.hessian(f)(few)


@check("linearize", expect="jvp")
def _(op, args):
    f, moving = differentiable(op, args)
    out, linear = jax.linearize(f, moving)
    return out, linear(direction(moving))


@check("linear_transpose")
def _(op, args):
    data = {n: x for n, x in args.items() if n in DATA}
    return jax.linear_transpose(lambda data: op(args | data), data)(direction(op(args)))


@check("linear_transpose twice", expect="value")
def _(op, args):
    data = {n: x for n, x in args.items() if n in DATA}
    transposed = jax.linear_transpose(lambda data: op(args | data), data)
    (out,) = jax.linear_transpose(lambda y: transposed(y)[0], op(args))(data)
    return out


@check("reverse over reverse", cases=EVERY_CASE)
def _(op, args):
    f, moving = differentiable(op, args)
    return jax.grad(along(loss(f)))(moving)


@check("forward over reverse", expect="reverse over reverse")
def _(op, args):
    f, moving = differentiable(op, args)
    return jax.jvp(jax.grad(loss(f)), (moving,), (direction(moving),))[1]


@check("reverse over forward", expect="reverse over reverse")
def _(op, args):
    f, moving = differentiable(op, args)
    return jax.grad(lambda x: jax.jvp(loss(f), (x,), (direction(x),))[1])(moving)


@check("forward over forward", cases=EITHER)
def _(op, args):
    f, moving = differentiable(op, args)
    tangent = direction(moving)
    return jax.jvp(lambda x: jax.jvp(f, (x,), (tangent,))[1], (moving,), (tangent,))


@check("third order")
def _(op, args):
    f, few = by_few(op, args)
    return jax.jvp(jax.grad(along(f)), (few,), (direction(few),))[1]


@check("third order, reverse only", expect="third order", cases=EITHER)
def _(op, args):
    f, few = by_few(op, args)
    return jax.grad(along(along(f)))(few)


@check("gradient through a gradient step", cases=EITHER)
def _(op, args):
    knob, _ = knobs(args)
    start = args[leader(args)]

    def outer(k):
        inner = loss(lambda x: op(args | {knob: k, leader(args): x}))
        return inner(start - 0.1 * jax.grad(inner)(start))

    return jax.grad(outer)(args[knob])


@check("check_grads", expect="value", eager=True, cases=("linear_recurrence",))
def _(op, args):
    f, moving = differentiable(op, args)
    jax.test_util.check_grads(jax.jit(f), (moving,), order=2, modes=("fwd", "rev"))
    return op(args)
