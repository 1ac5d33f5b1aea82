"""The driver: it makes what the state wants happen, for as long as somebody drives the run."""
