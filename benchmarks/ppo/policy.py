"""The actor and the critic, and the distributions of actions."""

import math
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from gymnax.environments import spaces
from jax import Array


class Categorical(NamedTuple):
    """The policy over discrete actions."""

    logits: Array

    def sample(self, key: Array) -> Array:
        return jax.random.categorical(key, self.logits)

    def log_prob(self, action: Array) -> Array:
        log_probs = jax.nn.log_softmax(self.logits)
        return jnp.take_along_axis(log_probs, action[..., None], axis=-1)[..., 0]

    def entropy(self) -> Array:
        log_probs = jax.nn.log_softmax(self.logits)
        return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)


class Gaussian(NamedTuple):
    """The policy over box actions; the components are independent."""

    mean: Array
    log_std: Array

    def sample(self, key: Array) -> Array:
        return self.mean + jnp.exp(self.log_std) * jax.random.normal(key, self.mean.shape)

    def log_prob(self, action: Array) -> Array:
        z = (action - self.mean) * jnp.exp(-self.log_std)
        return -jnp.sum(0.5 * z**2 + self.log_std + 0.5 * math.log(2 * math.pi), axis=-1)

    def entropy(self) -> Array:
        return jnp.sum(self.log_std + 0.5 * math.log(2 * math.pi * math.e), axis=-1)


class ActorCritic(nn.Module):
    """Two separate tanh networks: the policy and the state value."""

    action_space: spaces.Discrete | spaces.Box
    hidden: int

    @nn.compact
    def __call__(self, observation: Array) -> tuple[Categorical | Gaussian, Array]:
        def mlp(outputs: int, scale: float) -> Array:
            x = observation
            for _ in range(2):
                x = nn.tanh(
                    nn.Dense(self.hidden, kernel_init=nn.initializers.orthogonal(2**0.5))(x)
                )
            return nn.Dense(outputs, kernel_init=nn.initializers.orthogonal(scale))(x)

        value = mlp(1, scale=1.0)[..., 0]
        if isinstance(self.action_space, spaces.Discrete):
            return Categorical(mlp(self.action_space.n, scale=0.01)), value
        mean = mlp(math.prod(self.action_space.shape), scale=0.01)
        log_std = self.param("log_std", nn.initializers.zeros, mean.shape[-1:])
        return Gaussian(mean, jnp.broadcast_to(log_std, mean.shape)), value
