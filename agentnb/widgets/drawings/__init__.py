"""The drawings of a loop, as SVG: the state diagram of its phases, and its call graph."""
