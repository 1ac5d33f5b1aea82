"""The gate: whether something new may start. Pauses, steps, limits and breakpoints."""
