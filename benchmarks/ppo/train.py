"""PPO in one jitted function, environments included, vmapped over seeds."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from gymnax.environments import spaces
from jax import Array

import rl_triton_jax
from benchmarks.ppo.policy import ActorCritic


@dataclass(frozen=True)
class Config:
    """What is trained, and PPO's hyperparameters. `total_timesteps` counts one seed's."""

    env: str = "CartPole-v1"
    seeds: int = 4
    envs: int = 16
    steps: int = 128
    total_timesteps: int = 300_000
    implementation: str | None = None
    gamma: float = 0.99
    lambda_: float = 0.95
    learning_rate: float = 2e-3
    max_grad_norm: float = 0.5
    epochs: int = 4
    minibatches: int = 8
    clip: float = 0.2
    entropy_weight: float = 0.01
    value_weight: float = 0.5
    hidden: int = 64

    def __post_init__(self) -> None:
        if min(self.seeds, self.envs, self.steps) < 1:
            raise ValueError("seeds, envs and steps must be positive")
        if self.updates < 1:
            raise ValueError("total_timesteps must hold at least one rollout of envs * steps")
        if self.envs * self.steps % self.minibatches:
            raise ValueError("envs * steps must be a multiple of the number of minibatches")

    @property
    def updates(self) -> int:
        """The number of rollouts, each followed by an update."""
        return self.total_timesteps // (self.envs * self.steps)


class Transition(NamedTuple):
    """One row of the rollout. `next_observation` is the true successor, not a reset's."""

    observation: Array
    action: Array
    log_prob: Array
    reward: Array
    terminated: Array
    truncated: Array
    next_observation: Array


class State(NamedTuple):
    """What one update hands to the next, for one seed."""

    key: Array
    params: Any
    opt_state: optax.OptState
    env_state: object
    observation: Array
    episode_return: Array


class Episodes(NamedTuple):
    """The episodes that ended during one update: how many, and the sum of their returns."""

    count: Array
    return_sum: Array


def assign_credit(
    config: Config,
    rewards: Array,
    values: Array,
    next_values: Array,
    terminated: Array,
    truncated: Array,
) -> rl_triton_jax.GAEOutput:
    """The credit assignment of one update of one seed; every array is [steps, envs]."""
    return rl_triton_jax.gae(
        rewards,
        values,
        terminated,
        gamma=config.gamma,
        lambda_=config.lambda_,
        next_values=next_values,
        truncated=truncated,
        implementation=config.implementation,
    )


def make_train(
    config: Config, on_update: Callable[[np.ndarray, np.ndarray], None]
) -> Callable[[Array], Episodes]:
    """Returns `train(keys)`, to be jitted: one key a seed in, [updates, seeds] Episodes out.

    `on_update` is called on the host after every update with `Episodes`' fields, of all seeds.
    """
    env, env_params = gymnax.make(config.env)
    action_space = env.action_space(env_params)
    if not isinstance(action_space, spaces.Discrete | spaces.Box):
        raise ValueError(f"{config.env}: the action space {action_space} is not supported")
    network = ActorCritic(action_space, config.hidden)
    forward: Any = network.apply  # to flax it may return variables, too
    optimizer = optax.chain(
        optax.clip_by_global_norm(config.max_grad_norm),
        optax.adam(
            optax.linear_schedule(
                config.learning_rate, 0.0, config.updates * config.epochs * config.minibatches
            ),
            eps=1e-5,
        ),
    )

    def flat(observation: Array) -> Array:
        return observation.astype(jnp.float32).ravel()

    def reset(key: Array) -> tuple[Array, object]:
        observation, env_state = env.reset_env(key, env_params)
        return flat(observation), env_state

    def step(key: Array, env_state: object, action: Array) -> tuple:
        """One step of one environment; the observation before the reset comes out last."""
        step_key, reset_key = jax.random.split(key)
        if isinstance(action_space, spaces.Box):
            action = jnp.clip(action, action_space.low, action_space.high)
        final, env_state, reward, terminated, _ = env.step_env(
            step_key, env_state, action, env_params
        )
        truncated = env.is_truncated(env_state, env_params)
        final = flat(final)
        observation, env_state = jax.tree.map(
            partial(jnp.where, terminated | truncated), reset(reset_key), (final, env_state)
        )
        return observation, env_state, reward, terminated, truncated, final

    def init(key: Array) -> State:
        key, params_key, reset_key = jax.random.split(key, 3)
        observation, env_state = jax.vmap(reset)(jax.random.split(reset_key, config.envs))
        params = network.init(params_key, observation)
        return State(
            key, params, optimizer.init(params), env_state, observation, jnp.zeros(config.envs)
        )

    def act(state: State, _: None) -> tuple[State, tuple[Transition, Episodes]]:
        key, action_key, step_key = jax.random.split(state.key, 3)
        policy, _ = forward(state.params, state.observation)
        action = policy.sample(action_key)
        observation, env_state, reward, terminated, truncated, final = jax.vmap(step)(
            jax.random.split(step_key, config.envs), state.env_state, action
        )
        done = terminated | truncated
        episode_return = state.episode_return + reward
        episodes = Episodes(jnp.sum(done), jnp.sum(episode_return, where=done))
        log_prob = policy.log_prob(action)
        transition = Transition(
            state.observation, action, log_prob, reward, terminated, truncated, final
        )
        state = state._replace(
            key=key,
            env_state=env_state,
            observation=observation,
            episode_return=jnp.where(done, 0.0, episode_return),
        )
        return state, (transition, episodes)

    def loss(params: Any, batch: tuple[Transition, Array, Array]) -> Array:
        transition, advantage, target = batch
        policy, value = forward(params, transition.observation)
        ratio = jnp.exp(policy.log_prob(transition.action) - transition.log_prob)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        gain = jnp.minimum(
            ratio * advantage, jnp.clip(ratio, 1 - config.clip, 1 + config.clip) * advantage
        )
        value_loss = 0.5 * jnp.square(value - target)
        return jnp.mean(
            config.value_weight * value_loss - gain - config.entropy_weight * policy.entropy()
        )

    def learn(carry: tuple, batch: tuple) -> tuple[tuple, None]:
        params, opt_state = carry
        grads = jax.grad(loss)(params, batch)
        changes, opt_state = optimizer.update(grads, opt_state)
        return (optax.apply_updates(params, changes), opt_state), None

    def update(state: State) -> tuple[State, Episodes]:
        """One rollout, its credit assignment, and the epochs of minibatches over it."""
        state, (rollout, episodes) = jax.lax.scan(act, state, None, config.steps)
        _, values = forward(state.params, rollout.observation)
        _, next_values = forward(state.params, rollout.next_observation)
        advantages, targets = assign_credit(
            config, rollout.reward, values, next_values, rollout.terminated, rollout.truncated
        )
        rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (rollout, advantages, targets))

        def epoch(carry: tuple, key: Array) -> tuple[tuple, None]:
            order = jax.random.permutation(key, config.envs * config.steps)
            order = order.reshape(config.minibatches, -1)
            return jax.lax.scan(learn, carry, jax.tree.map(lambda x: x[order], rows))

        key, epoch_key = jax.random.split(state.key)
        (params, opt_state), _ = jax.lax.scan(
            epoch, (state.params, state.opt_state), jax.random.split(epoch_key, config.epochs)
        )
        state = state._replace(key=key, params=params, opt_state=opt_state)
        return state, jax.tree.map(jnp.sum, episodes)

    def train(keys: Array) -> Episodes:
        # The seeds are vmapped inside the loop over updates: one host callback an update.
        def body(state: State, _: None) -> tuple[State, Episodes]:
            state, episodes = jax.vmap(update)(state)
            jax.debug.callback(on_update, *jax.tree.map(jnp.sum, episodes))
            return state, episodes

        return jax.lax.scan(body, jax.vmap(init)(keys), None, config.updates)[1]

    return train
