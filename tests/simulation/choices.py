"""Choices: where everything random in a simulation comes from.

A choice is a number below another, and 0 is always the simplest one: the shortest, the calmest, nothing at all. So
hypothesis, which shrinks numbers, shrinks a world. The numbers come from a seed, or from hypothesis, or from hypothesis
on top of a seed: then each is at most what the seed gave, and a world that fails becomes smaller and smaller.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")

Below = Callable[[int], int]
"""Gives a number from 0 to n - 1."""

WHOLE = 1 << 16
"""More than any number that is drawn. What hypothesis draws first is mostly above it, and leaves a seed's number."""


class Choices:
    """Draws numbers. Each part of a world draws from a source of its own, so that leaving one out changes no other."""

    def __init__(self, source: Callable[[str], Below], part: str = "") -> None:
        self._source = source
        self._part = part
        self._below = source(part)

    def part(self, name: object) -> Choices:
        """The choices of a part of the world."""
        return Choices(self._source, f"{self._part}/{name}")

    def below(self, n: int) -> int:
        """A number from 0 to n - 1."""
        return self._below(n)

    def pick(self, *options: Any) -> Any:
        """One of the options; the first is the simplest."""
        return options[self.below(len(options))]

    def chance(self, percent: int) -> bool:
        """True in so many of a hundred cases."""
        return self.below(100) >= 100 - percent

    def many(self, most: int, percent: int = 75) -> Iterator[Choices]:
        """Choices for one thing after the other, while the dice say so, up to `most` of them."""
        for number in range(most):
            one = self.part(number)
            if not one.chance(percent):
                return
            yield one

    def some(self, options: Sequence[T], percent: int = 50) -> list[T]:
        """Some of the options, at least one."""
        return [option for option in options if self.chance(percent)] or [self.pick(*options)]


def of_seed(seed: int) -> Choices:
    """The choices that a seed gives."""
    return Choices(_source(seed))


def _source(seed: int) -> Callable[[str], Below]:
    def source(part: str) -> Below:
        numbers = random.Random(f"{seed}{part}")
        return lambda n: int(numbers.random() * n)  # one number each, whatever n is

    return source


@st.composite
def drawn(draw: st.DrawFn, make: Callable[[Choices], T]) -> T:
    """What `make` makes of choices that hypothesis draws."""
    return make(Choices(lambda part: lambda n: draw(st.integers(0, n - 1))))


@st.composite
def smaller(draw: st.DrawFn, seed: int, make: Callable[[Choices], T]) -> T:
    """What `make` makes of the choices of a seed, each of which hypothesis may make smaller."""
    source = _source(seed)

    def shrunk(part: str) -> Below:
        below = source(part)
        return lambda n: min(below(n), draw(st.integers(0, WHOLE)))

    return make(Choices(shrunk))
