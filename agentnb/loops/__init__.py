"""The loop designs, one module each."""
