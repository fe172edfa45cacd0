"""The fused kernels: Triton only. `rl_triton_jax.recurrences` says the same in JAX."""
