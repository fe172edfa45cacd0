"""What Retrace needs of tables over actions: an expectation, a ratio, the taken action's value; and
the cotangents of the tables it is linear in.

A table holds a number for every action in every row, actions side by side. They are taken in
blocks, so that no tile ever holds all of them: a tile is [rows, lanes, actions of a block].
"""

import triton
import triton.language as tl

from rl_triton_jax.kernels.gate import coefficient, gate
from rl_triton_jax.kernels.operands import (
    address,
    counts,
    exists_in,
    has,
    masked,
    raw,
    read,
    slot,
    wants,
)


@triton.jit
def places(plan: tl.constexpr, x, name: tl.constexpr, o: tl.constexpr):
    """Where row t + o of a table starts, and whether there is one: tiles of all rows and lanes."""
    there = exists_in(plan, x, o, plan.length) & x[3]
    return tl.broadcast(address(plan, x, name, o), there)


@triton.jit
def in_block(plan: tl.constexpr, first):
    """The actions of the block that starts with this one."""
    return (first + tl.arange(0, plan.action_block))[None, None, :]


@triton.jit
def block_of(plan: tl.constexpr, pointer, there, first, other):
    """A block of actions of a table."""
    action = in_block(plan, first)
    mask = there[:, :, None] & (action < plan.actions)
    return tl.load(pointer[:, :, None] + action, mask=mask, other=other).to(plan.dtype)


@triton.jit
def taken(plan: tl.constexpr, x, o: tl.constexpr):
    """The action; a negative one counts from the end."""
    action = raw(plan, x, "actions", o)
    return tl.where(action < 0, action + plan.actions, action)


@triton.jit
def of_the_action(plan: tl.constexpr, x, name: tl.constexpr, o: tl.constexpr):
    """A table's number for the action taken; one that does not exist has NaN, as in JAX."""
    pointer, there = places(plan, x, name, o)
    action = taken(plan, x, o)
    exists = (action >= 0) & (action < plan.actions)
    other = tl.where(there, float("nan"), 0.0).to(pointer.dtype.element_ty)
    return tl.load(pointer + action, mask=there & exists, other=other).to(plan.dtype)


@triton.jit
def rescale(m, m_new):
    """What sums of exp(x - m) are multiplied by when m grows."""
    return tl.exp(m - tl.where(m_new == float("-inf"), 0, m_new))


@triton.jit
def log_sum_exp(plan: tl.constexpr, x, name: tl.constexpr, o: tl.constexpr):
    """log Σ_a exp(table_a), each place of a block with a running largest of its own."""
    pointer, there = places(plan, x, name, o)
    shape: tl.constexpr = [there.shape[0], there.shape[1], plan.action_block]
    m = tl.full(shape, float("-inf"), plan.dtype)
    total = tl.zeros(shape, plan.dtype)
    for first in range(0, plan.actions, plan.action_block):
        logits = block_of(plan, pointer, there, first, float("-inf"))
        largest = tl.maximum(m, logits)
        total = total * rescale(m, largest) + rescale(logits, largest)
        m = largest
    largest = tl.max(m, 2, keep_dims=True)
    total = tl.sum(total * rescale(m, largest), 2)
    return tl.max(m, 2) + tl.log(total)


@triton.jit
def log_ratio(plan: tl.constexpr, x, o: tl.constexpr):
    """log ρ_t = log π(a_t|s_t) - log μ(a_t|s_t)."""
    if has(plan, "target_probs"):
        log_pi = tl.log(of_the_action(plan, x, "target_probs", o))
    else:
        log_pi = of_the_action(plan, x, "target_logits", o)
        log_pi -= log_sum_exp(plan, x, "target_logits", o)
    return log_pi - read(plan, x, "behaviour_log_prob", o)


@triton.jit
def expectation(plan: tl.constexpr, x, o: tl.constexpr):
    """Σ_a π(a|s_{t+1}) q(s_{t+1}, a)."""
    values, there = places(plan, x, "next_q_values", o)
    shape: tl.constexpr = [there.shape[0], there.shape[1], plan.action_block]
    total = tl.zeros(shape, plan.dtype)
    if has(plan, "next_target_probs"):
        probs, there = places(plan, x, "next_target_probs", o)
        for first in range(0, plan.actions, plan.action_block):
            weight = block_of(plan, probs, there, first, 0.0)
            total += gate(coefficient(weight), block_of(plan, values, there, first, 0.0))
        return tl.sum(total, 2)
    else:
        logits, there = places(plan, x, "next_target_logits", o)
        m = tl.full(shape, float("-inf"), plan.dtype)
        weights = tl.zeros(shape, plan.dtype)
        for first in range(0, plan.actions, plan.action_block):
            logit = block_of(plan, logits, there, first, float("-inf"))
            largest = tl.maximum(m, logit)
            weight, scale = rescale(logit, largest), rescale(m, largest)
            weights = weights * scale + weight
            total = gate(coefficient(scale), total)
            total += gate(coefficient(weight), block_of(plan, values, there, first, 0.0))
            m = largest
        scale = rescale(m, tl.max(m, 2, keep_dims=True))
        return tl.sum(gate(coefficient(scale), total), 2) / tl.sum(weights * scale, 2)


@triton.jit
def store_block(plan: tl.constexpr, x, results, name: tl.constexpr, first, value):
    """A block of actions of row t of a result."""
    if masked(plan):
        value = tl.where(counts(plan, x, 0)[:, :, None], value, 0)
    pointer = results[1][slot(plan.results, name)]
    action = in_block(plan, first)
    there = exists_in(plan, x, 0, plan.length) & x[3]
    mask = there[:, :, None] & (action < plan.actions)
    tl.store(pointer[:, :, None] + action, value.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def write_at_the_action(plan: tl.constexpr, x, results, name: tl.constexpr, value):
    """Stores a table that holds the value for the action taken, and 0 for all others."""
    if wants(plan, name):
        action = taken(plan, x, 0)[:, :, None]
        for first in range(0, plan.actions, plan.action_block):
            chosen = tl.where(in_block(plan, first) == action, value[:, :, None], 0)
            store_block(plan, x, results, name, first, chosen)


@triton.jit
def write_expected(plan: tl.constexpr, x, results, name: tl.constexpr, value):
    """Stores π(a|s_{t+1}) times the value, for every action."""
    if wants(plan, name):
        logits: tl.constexpr = has(plan, "next_target_logits")
        policy: tl.constexpr = "next_target_logits" if logits else "next_target_probs"
        pointer, there = places(plan, x, policy, 0)
        if logits:
            total = log_sum_exp(plan, x, policy, 0)
        for first in range(0, plan.actions, plan.action_block):
            weight = block_of(plan, pointer, there, first, 0.0)
            if logits:
                weight = tl.exp(weight - total[:, :, None])
            expected = gate(coefficient(weight), value[:, :, None])
            store_block(plan, x, results, name, first, expected)
