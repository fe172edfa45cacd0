"""PPO on gymnax environments in one jitted function, with `rl_triton_jax.gae` inside.

Run `python -m benchmarks.ppo`. Everything, the environments included, is vmapped over seeds.
"""
