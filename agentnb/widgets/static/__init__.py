"""The static panel: what a saved notebook shows without a kernel."""
