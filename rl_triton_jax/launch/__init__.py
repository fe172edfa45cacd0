"""From a primitive's operands to a kernel launch."""
