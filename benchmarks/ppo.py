"""PPO on gymnax environments in one jitted function, with `rl_triton_jax.gae` inside.

Run `python -m benchmarks.ppo`. Everything, the environments included, is vmapped over seeds.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import flax.linen as nn
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from gymnax.environments import spaces
from jax import Array

import rl_triton_jax
from benchmarks import _ppo_report


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
    params: dict
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
    config: Config, on_update: Callable[[Array, Array], None]
) -> Callable[[Array], Episodes]:
    """Returns `train(keys)`, to be jitted: one key a seed in, [updates, seeds] Episodes out.

    `on_update` is called on the host after every update with `Episodes`' fields, of all seeds.
    """
    env, env_params = gymnax.make(config.env)
    action_space = env.action_space(env_params)
    if not isinstance(action_space, spaces.Discrete | spaces.Box):
        raise ValueError(f"{config.env}: the action space {action_space} is not supported")
    network = ActorCritic(action_space, config.hidden)
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
        policy, _ = network.apply(state.params, state.observation)
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

    def loss(params: dict, batch: tuple[Transition, Array, Array]) -> Array:
        transition, advantage, target = batch
        policy, value = network.apply(params, transition.observation)
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
        _, values = network.apply(state.params, rollout.observation)
        _, next_values = network.apply(state.params, rollout.next_observation)
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


def credit_seconds(config: Config, calls: int = 100) -> float:
    """Seconds of a standalone call of `assign_credit` over all seeds, the median of five means."""
    shape = (config.seeds, config.steps, config.envs)
    floats = jax.random.normal(jax.random.key(0), (3, *shape))
    flags = jax.random.bernoulli(jax.random.key(1), 0.01, (2, *shape))
    assign = jax.jit(jax.vmap(partial(assign_credit, config)))
    jax.block_until_ready(assign(*floats, *flags))
    means = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(calls):
            output = assign(*floats, *flags)
        jax.block_until_ready(output)
        means.append((time.perf_counter() - start) / calls)
    return statistics.median(means)


def parse(argv: list[str] | None) -> tuple[Config, Path]:
    """Reads the command line: what to train and where the plot goes."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    option = parser.add_argument
    option(
        "--env",
        choices=gymnax.registered_envs,
        metavar="ENV",
        default=Config.env,
        help="a gymnax environment",
    )
    option("--seeds", type=int, default=Config.seeds, help="how many, trained side by side")
    option("--envs", type=int, default=Config.envs, help="environments of a seed")
    option("--steps", type=int, default=Config.steps, help="rollout length")
    option(
        "--total-timesteps",
        type=int,
        default=Config.total_timesteps,
        help="environment steps of a seed, all its environments together",
    )
    option(
        "--implementation",
        choices=("scan", "associative_scan", "triton"),
        help="passed on to gae; None is the library's own choice",
    )
    option("--plot", type=Path, help="the learning curve's PNG; None is ppo_<env>.png")
    arguments = vars(parser.parse_args(argv))
    plot = arguments.pop("plot") or Path(f"ppo_{arguments['env']}.png")
    try:
        return Config(**arguments), plot
    except ValueError as error:
        parser.error(str(error))


def main(argv: list[str] | None = None) -> None:
    """Trains, then prints the table and writes the learning curve."""
    config, plot = parse(argv)
    keys = jax.vmap(jax.random.key)(jnp.arange(config.seeds))
    with _ppo_report.progress(config.updates) as on_update:
        start = time.perf_counter()
        train = jax.jit(make_train(config, on_update)).lower(keys).compile()
        compiled = time.perf_counter()
        episodes = jax.block_until_ready(train(keys))
        ended = time.perf_counter()
        jax.effects_barrier()  # the last callbacks, before the bar closes

    timesteps = config.updates * config.steps * config.envs
    run_seconds = ended - compiled
    call_seconds = credit_seconds(config)
    count, return_sum = map(np.asarray, episodes)
    title = f"PPO on {config.env}"
    _ppo_report.print_table(
        f"{title}, {config.seeds} seeds of {timesteps:,} steps, {jax.devices()[0].device_kind}",
        _ppo_report.mean_returns(count, return_sum, bins=10)[-1],
        {
            "compile time": f"{compiled - start:.1f} s",
            "run time": f"{run_seconds:.1f} s",
            "steps/s, all seeds": f"{config.seeds * timesteps / run_seconds:,.0f}",
            "one call of gae": f"{call_seconds * 1e3:.3f} ms",
            "credit assignment's share": f"{call_seconds * config.updates / run_seconds:.2%}",
        },
    )
    curve = _ppo_report.mean_returns(count, return_sum, bins=100)
    _ppo_report.plot_curve(plot, title, curve, timesteps)
    print(f"learning curve: {plot}")


if __name__ == "__main__":
    main()
