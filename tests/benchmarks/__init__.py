"""What agentnb costs, as ratios to the bare loop in the same process.

Each test prints the ratio it measured beside the one aimed at, and fails only where it has left a wider bound behind:
machines are noisy, and a bound that fails by chance is soon ignored.
"""
