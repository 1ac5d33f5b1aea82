"""Views: what the live and the static panel show of a run, as small values made from its events."""
