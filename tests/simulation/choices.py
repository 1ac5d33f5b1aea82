"""Choices: the source of everything random in a simulation.

A choice is a number below a limit, and 0 is always the simplest one: the shortest, the calmest, or nothing. Hypothesis
shrinks numbers, and so it shrinks a world. The numbers come from a seed, from hypothesis, or from both: then each is at
most that of the seed, and a failing world becomes smaller and smaller.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")

Below = Callable[[int], int]
"""A function that returns a number from 0 to n - 1."""

WHOLE = 1 << 16
"""A limit above every choice. Most numbers that hypothesis draws are above the choice, and so keep that of the seed."""


class Choices:
    """A source of numbers. Each part of a world has its own, so that leaving out a part changes no other part."""

    def __init__(self, source: Callable[[str], Below], part: str = "") -> None:
        self._source = source
        self._part = part
        self._below = source(part)

    def part(self, name: object) -> Choices:
        """Return the choices of a part of the world."""
        return Choices(self._source, f"{self._part}/{name}")

    def below(self, n: int) -> int:
        """Return a number from 0 to n - 1."""
        return self._below(n)

    def pick(self, *options: Any) -> Any:
        """Return one of the options; the first is the simplest."""
        return options[self.below(len(options))]

    def chance(self, percent: int) -> bool:
        """Return True in `percent` percent of the cases."""
        return self.below(100) >= 100 - percent

    def many(self, most: int, percent: int = 75) -> Iterator[Choices]:
        """Yield choices for a random number of parts, at most `most`; each is added with a probability of `percent`."""
        for number in range(most):
            one = self.part(number)
            if not one.chance(percent):
                return
            yield one

    def some(self, options: Sequence[T], percent: int = 50) -> list[T]:
        """Return a random selection of the options, at least one."""
        return [option for option in options if self.chance(percent)] or [self.pick(*options)]


def of_seed(seed: int) -> Choices:
    """Return the choices of a seed."""
    return Choices(_source(seed))


def _source(seed: int) -> Callable[[str], Below]:
    def source(part: str) -> Below:
        numbers = random.Random(f"{seed}{part}")
        return lambda n: int(numbers.random() * n)  # exactly one random number for each choice, independent of n

    return source


@st.composite
def drawn(draw: st.DrawFn, make: Callable[[Choices], T]) -> T:
    """Return the result of `make` with choices that hypothesis draws."""
    return make(Choices(lambda part: lambda n: draw(st.integers(0, n - 1))))


@st.composite
def smaller(draw: st.DrawFn, seed: int, make: Callable[[Choices], T]) -> T:
    """Return the result of `make` with the choices of a seed, each of which hypothesis may make smaller."""
    source = _source(seed)

    def shrunk(part: str) -> Below:
        below = source(part)
        return lambda n: min(below(n), draw(st.integers(0, WHOLE)))

    return make(Choices(shrunk))
