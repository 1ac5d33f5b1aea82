"""Loops in generator form: written top to bottom, as a generator that yields what it wants (SEMANTICS.md)."""

from agentnb.loops.generator.loop import Function, GeneratorLoop, Phases

__all__ = ["Function", "GeneratorLoop", "Phases"]
