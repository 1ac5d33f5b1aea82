"""Loops in generator form: written top to bottom, as a generator that yields commands (SEMANTICS.md)."""

from agentnb.loops.generator.loop import Function, GeneratorLoop, Phases

__all__ = ["Function", "GeneratorLoop", "Phases"]
