"""Drawings: what is drawn of a loop, as SVG: its phases, and the calls of a graph."""
