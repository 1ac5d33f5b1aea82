"""The gate: decides whether new effects may start. Pauses, steps, limits and breakpoints."""
