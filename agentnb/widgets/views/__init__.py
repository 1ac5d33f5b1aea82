"""Views: what the panel shows of a run, live or frozen, as small data made from its events."""
