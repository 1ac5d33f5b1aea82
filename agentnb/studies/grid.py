"""The grid of a study: its cells, each made of an arm, an input and a repeat, and the checks of what a user passes.

The identity of a cell is its arm, its input and its repeat, and not its position. A study that is continued with more
repeats, or with its inputs in another order, therefore finds its recorded runs again, and their seeds do not change.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from agentnb.core.errors import UsageError
from agentnb.core.events import RunStart
from agentnb.core.json import plain_number, same_json
from agentnb.core.loop import Design
from agentnb.llms.adapt import with_options
from agentnb.loops.base import Loop
from agentnb.run.approvals.policy import make_policy
from agentnb.run.approvals.recorded_policy import read_policy
from agentnb.run.event_data import input_as_json
from agentnb.run.gate.gate import check_limits
from agentnb.run.validation import check_name, check_on_limit, check_start_options, checked_options, shown
from agentnb.studies.inputs import listed
from agentnb.studies.treatments import Treatment, common_treatment, treatment_of

Label = str | int | float | bool | None
"""The label of a value of an arm, as it is recorded and shown in tables."""

START_OPTIONS = ("approve", "limits", "on_limit", "options")
"""The options of `start` that may be arms, unless the factory takes an argument of that name."""

LARGEST_SEED = 2**31 - 1
"""The largest seed of a run. Every provider accepts seeds up to this number."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of the grid.

    arm: the label of each factor. input: the input; `input_number` is its position in `inputs`, `input_key` identifies
    its content. repeat: from 0. seed: the seed of this run. values: the values of the arm.
    """

    name: str
    arm: Mapping[str, Label]
    input: Any
    input_number: int
    repeat: int
    seed: int
    input_key: str = field(repr=False)
    values: Mapping[str, Any] = field(repr=False)

    @property
    def key(self) -> str:
        """The identity of the cell in its study."""
        return cell_key(self.arm, self.input_key, self.repeat)


def cell_key(arm: Mapping[str, Label], input_key: str, repeat: int) -> str:
    """Return the identity of a cell as text."""
    return json.dumps([dict(arm), input_key, repeat], sort_keys=True)


class Grid:
    """All cells of a study, in the order in which they start: each repeat has every arm with every input.

    options: those of `start`, for all runs. Raises UsageError, which names the argument and what to do, if the cells
    cannot be made, or if a model does not take one of the options.
    """

    def __init__(
        self,
        name: str,
        make_loop: Callable[..., Design],
        inputs: Iterable[Any],
        repeats: int,
        arms: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
        seed: int,
        options: Mapping[str, Any],
        seed_by: Literal["cell", "input"] = "cell",
    ) -> None:
        check_name("study(name=)", name)
        self.name = name
        self.seed = whole_number("seed", seed, 0)
        self.repeats = whole_number("repeats", repeats, 1)
        if seed_by not in ("cell", "input"):
            raise UsageError(f'seed_by= takes "cell" or "input", not {shown(seed_by)}.')
        self.seed_by = seed_by
        self.inputs = _checked_inputs(inputs)
        rows = None if arms is None or isinstance(arms, Mapping) else _checked_rows(arms)
        if rows is not None:
            arms = {factor: _different(row[factor] for row in rows) for factor in rows[0]}
        self.factors = {factor: _labelled(factor, values) for factor, values in _checked_arms(arms).items()}
        self.make_loop = make_loop
        self._takes_seed = check_factory(make_loop, self.factors)
        self.options = {**options, "approve": read_policy(options.get("approve"))}
        self._options_of_arms = _options_in(make_loop, self.factors)
        if "approve" in self._options_of_arms:  # a file with rules: workers may not have it
            self.factors["approve"] = [(label, read_policy(value)) for label, value in self.factors["approve"]]
        self._rows = (
            None
            if rows is None
            else [{factor: _label_of(factor, value) for factor, value in row.items()} for row in rows]
        )
        """The labels of each arm, if the arms were given as a list; None for all combinations."""
        self.cells = self._cells()
        self.input_keys = {cell.input_key for cell in self.cells}
        self.kinds: dict[str, str] = {}
        """The kind of the loop of each arm, by the arm's labels as JSON."""
        self.start_options: dict[str, dict[str, Any]] = {}
        """The options of `start` of each arm, by the arm's labels as JSON."""
        self.treatments: dict[str, Treatment] = {}
        """What is done to the inputs of each arm, by the arm's labels as JSON."""
        self.check_loops()

    @property
    def labels(self) -> dict[str, list[Label]]:
        """The labels of each factor, as they are recorded."""
        return {factor: [label for label, _ in values] for factor, values in self.factors.items()}

    def treatment_data(self, cell: Cell, loop: Loop, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the data of a run has about its treatment. loop, options: those of the run."""
        of_arm = self.treatments[json.dumps(dict(cell.arm))]
        own = treatment_of(loop, options, cell.values) if self._takes_seed else of_arm
        return {"id": of_arm.id, "parts": own.others}

    def differences(self, start: RunStart) -> list[str]:
        """Return how the treatment of a recorded run differs from that of its arm, if the study has this arm."""
        treatment = self.treatments.get(json.dumps(start.data["arm"]))
        found = treatment.differences(start) if treatment is not None else []
        if not found or not self._takes_seed:
            return found
        # Another seed may make another loop: compare with the loop that the recorded run's seed makes now.
        of_arm = next(cell for cell in self.cells if dict(cell.arm) == start.data["arm"])
        return treatment_of(*self.make(replace(of_arm, seed=start.data["seed"])), of_arm.values).differences(start)

    @property
    def factory_name(self) -> str:
        """The name of the function that makes the loops."""
        return _name_of(self.make_loop)

    def make(self, cell: Cell) -> tuple[Loop, dict[str, Any]]:
        """Return a new loop for a cell, and the options of `start` for its run. Those of its arm come first.

        Raises UsageError if the factory does not return a loop. Errors of the factory itself are raised unchanged.
        """
        of_arm = {name: cell.values[name] for name in self._options_of_arms}
        arguments = {name: value for name, value in cell.values.items() if name not in of_arm}
        if self._takes_seed:
            arguments["seed"] = cell.seed
        loop = self.make_loop(**arguments)
        if not isinstance(loop, Loop):
            raise UsageError(
                f"{_name_of(self.make_loop)} must return a loop, not {shown(loop)} (for the arm {arm_text(cell.arm)})."
            )
        options = {**self.options, **of_arm}
        of_all = self.options.get("options")
        if of_all and isinstance(options["options"], Mapping):  # both have options of the model
            options["options"] = {**of_all, **options["options"]}
        return loop, options

    def _cells(self) -> list[Cell]:
        inputs = [(number, input, input_key(input)) for number, input in enumerate(self.inputs)]
        arms = [dict(zip(self.factors, chosen, strict=True)) for chosen in itertools.product(*self.factors.values())]
        if self._rows is not None:
            of_label = {factor: {label: (label, value) for label, value in of} for factor, of in self.factors.items()}
            arms = [{factor: of_label[factor][label] for factor, label in row.items()} for row in self._rows]
        cells = []
        for repeat, (number, input, key), chosen in itertools.product(range(self.repeats), inputs, arms):
            arm = {factor: label for factor, (label, _) in chosen.items()}
            cells.append(
                Cell(
                    name="/".join([self.name, *map(str, arm.values()), f"{number}.{repeat}"]),
                    arm=arm,
                    input=input,
                    input_number=number,
                    repeat=repeat,
                    seed=seed_of(self.seed, cell_key(arm if self.seed_by == "cell" else {}, key, repeat)),
                    input_key=key,
                    values={factor: value for factor, (_, value) in chosen.items()},
                )
            )
        return cells

    def check_loops(self) -> None:
        """Make a loop for each arm, and two for the first, to find a factory that fails or that keeps its loops.

        Raises UsageError. A worker calls this, too: something that the factory needs may be missing there.
        """
        first = {json.dumps(dict(cell.arm)): cell for cell in reversed(self.cells)}
        made: list[Loop] = []
        for cell in [self.cells[0], *reversed(first.values())]:
            try:
                loop, options = self.make(cell)
            except UsageError:
                raise
            except Exception as error:
                raise UsageError(
                    f"{_name_of(self.make_loop)} failed for the arm {arm_text(cell.arm)}: {type(error).__name__}:"
                    f" {error}. No run was started."
                ) from error
            if any(loop is other for other in made):
                raise UsageError(
                    f"{_name_of(self.make_loop)} returned the same loop twice. Each run needs a loop of its own: make"
                    " the loop inside the function, and do not cache it."
                )
            made.append(loop)
            labels = json.dumps(dict(cell.arm))
            self.kinds[labels] = loop.kind()
            check_options(**options)
            self.start_options[labels] = options
            treatments = [treatment_of(loop, options, cell.values)]
            if self._takes_seed:  # what another seed changes is not of the arm
                other, its_options = self.make(replace(cell, seed=(cell.seed + 1) % (LARGEST_SEED + 1)))
                treatments.append(treatment_of(other, its_options, cell.values))
            self.treatments[labels] = common_treatment(treatments)
            try:
                with_options(loop.llm, checked_options(options.get("options")))
            except UsageError as error:
                raise UsageError(f"options= of the study, for the arm {arm_text(cell.arm)}: {error}") from None


# -- labels and seeds --------------------------------------------------------------------------------------------------


def arm_text(arm: Mapping[str, Label]) -> str:
    """Return an arm as text for a person: `model=small, policy=strict`."""
    return ", ".join(f"{factor}={label}" for factor, label in arm.items()) or "(there is only one)"


def input_key(input: Any) -> str:
    """Return a short text that identifies the content of an input."""
    text = json.dumps(input_as_json(input), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def seed_of(seed: int, key: str) -> int:
    """Return the seed of the run with this identity, computed from the seed of its study."""
    digest = hashlib.sha256(f"{seed} {key}".encode()).digest()
    return int.from_bytes(digest[:8]) % (LARGEST_SEED + 1)


def _labelled(factor: str, values: Any) -> list[tuple[Label, Any]]:
    """Return the values of a factor, each with its label. Raises UsageError if a label is missing or used twice."""
    if isinstance(values, Mapping):
        found: list[tuple[Label, Any]] = [(_checked_label(factor, label), value) for label, value in values.items()]
    else:
        found = [(_label_of(factor, value), value) for value in values]
    seen: dict[str, Any] = {}
    for label, value in found:
        if str(label) in seen:
            raise UsageError(
                f"arms[{factor!r}] has two values with the label {label!r}: {shown(seen[str(label)])} and"
                f" {shown(value)}. Pass a mapping from a label to each value."
            )
        seen[str(label)] = value
    return found


def _label_of(factor: str, value: Any) -> Label:
    number = plain_number(value)  # a number of numpy has the label of the number
    if isinstance(number, (str, int, float, bool, type(None))):
        return _checked_label(factor, number)
    for attribute in ("__name__", "name", "model"):
        label = getattr(value, attribute, None)
        if isinstance(label, str) and label and label != "<lambda>":
            return _checked_label(factor, label)
    raise UsageError(
        f"arms[{factor!r}] has a value without a name, {shown(value)}. Pass a mapping from a label to each value:"
        f' arms={{{factor!r}: {{"a label": ...}}}}.'
    )


def _checked_label(factor: str, label: Any) -> Label:
    """Return a label. Raises UsageError if it cannot be recorded, or not be found again in a recording."""
    if not isinstance(label, (str, int, float, bool, type(None))):
        raise UsageError(f"The labels of arms[{factor!r}] must be texts or numbers, not {shown(label)}.")
    if isinstance(label, float) and not math.isfinite(label):
        raise UsageError(
            f"arms[{factor!r}] has the label {label}, which is not a finite number. Pass a mapping from a label to each"
            f' value: arms={{{factor!r}: {{"a label": float("{label}")}}}}.'
        )
    check_name(f"Each label of arms[{factor!r}]", f"{factor}:{label}")  # the tag of its runs
    return label


# -- checks ------------------------------------------------------------------------------------------------------------


def whole_number(name: str, value: Any, least: int) -> int:
    """Return the value of an argument. Raises UsageError if it is not a whole number of at least `least`."""
    number = plain_number(value)
    if not isinstance(number, int) or isinstance(number, bool) or number < least:
        raise UsageError(f"{name}= must be a whole number of at least {least}, not {shown(value)}.")
    return number


def check_options(*, approve: Any = None, limits: Any = None, on_limit: Any = None, options: Any = None) -> None:
    """Raise UsageError if one of the options cannot be given to `start`."""
    make_policy(read_policy(approve))
    check_start_options(name=None, store=None, breakpoints=(), limits=limits)
    check_limits(limits or {})
    check_on_limit(on_limit)
    checked_options(options)


def at_once_of(value: Any) -> int:
    """Return the value of `at_once=`. Raises UsageError if it is not a whole number of at least 1."""
    return whole_number("at_once", value, 1)


def _checked_inputs(given: Any) -> list[Any]:
    inputs = listed(given)
    if not inputs:
        raise UsageError("inputs is empty: a study needs at least one input. Pass [None] for loops without an input.")
    as_json = [input_as_json(input) for input in inputs]
    keys: dict[str, int] = {}
    for number, input in enumerate(inputs):
        other = keys.setdefault(input_key(input), number)
        if other != number and same_json(as_json[other], as_json[number]):
            raise UsageError(
                f"inputs[{other}] and inputs[{number}] are equal: {shown(input)}. Pass each input once, and the number"
                " of its runs as repeats=."
            )
    return inputs


def _checked_rows(arms: Any) -> list[dict[str, Any]]:
    """Return the arms of a list. Raises UsageError if they are not mappings with the same names, or two are equal."""
    example = 'arms=[{"model": "small", "policy": "plain"}, {"model": "large", "policy": "sceptic"}]'
    if not isinstance(arms, (list, tuple)) or not all(isinstance(row, Mapping) for row in arms):
        raise UsageError(
            f"arms= takes a mapping from an argument to a list of its values, or a list of arms, {example}; not"
            f" {shown(arms)}."
        )
    if not arms or not arms[0]:
        raise UsageError(f"arms= is a list without arms. Give it at least one, {example}, or leave it out.")
    seen: dict[str, int] = {}
    rows = []
    for number, given in enumerate(arms):
        if set(given) != set(arms[0]):
            raise UsageError(
                f"arms[{number}] has the names {', '.join(map(str, given))}, but arms[0] has"
                f" {', '.join(map(str, arms[0]))}. Give each arm the same names."
            )
        row = {factor: given[factor] for factor in arms[0]}
        labels = json.dumps({str(factor): _label_of(str(factor), value) for factor, value in row.items()})
        if (first := seen.setdefault(labels, number)) != number:
            raise UsageError(f"arms[{first}] and arms[{number}] are equal: {shown(row)}. Pass each arm once.")
        rows.append(row)
    return rows


def _different(values: Iterable[Any]) -> list[Any]:
    """Return the values without those that occur again: the same object, or an equal text or number."""
    found: dict[Any, Any] = {}
    for value in values:
        is_label = isinstance(value, (str, int, float, bool, type(None)))
        found.setdefault((type(value), value) if is_label else id(value), value)
    return list(found.values())


def _checked_arms(arms: Any) -> dict[str, Any]:
    if arms is None:
        return {}
    example = 'arms={"model": ["small", "large"]}'
    if not isinstance(arms, Mapping) or not all(isinstance(factor, str) for factor in arms):
        raise UsageError(
            f"arms= takes a mapping from an argument to a list of its values, {example}; not {shown(arms)}."
        )
    if arms:
        check_name("Each name in arms=", *arms)
    for factor, values in arms.items():
        if isinstance(values, (str, bytes)) or not isinstance(values, (Mapping, list, tuple)):
            raise UsageError(f"arms[{factor!r}] must be a list of values, as in {example}, not {shown(values)}.")
        if not values:
            raise UsageError(f"arms[{factor!r}] is empty. Give it at least one value, or leave it out.")
    return dict(arms)


def check_factory(make_loop: Any, factors: Mapping[str, Any]) -> bool:
    """Raise UsageError if the factory cannot be called with the arms. Return True if it takes the seed of a run."""
    name = _name_of(make_loop)
    if isinstance(make_loop, Design):
        raise UsageError(f"make_loop must be a function that returns a new loop, not a loop: lambda: {name}(...).")
    if not callable(make_loop):
        raise UsageError(f"make_loop must be a function that returns a new loop, not {shown(make_loop)}.")
    if inspect.iscoroutinefunction(make_loop):
        raise UsageError(f"{name} is a coroutine function. Use a plain function that returns the loop.")
    if "seed" in factors:
        raise UsageError("An arm cannot be named seed: each run has a seed of its own, which make_loop may take.")
    try:
        signature = inspect.signature(make_loop)
    except ValueError:  # of some functions that are written in C
        raise UsageError(
            f"{name} does not say which arguments it takes. Pass a function of your own that returns a new loop."
        ) from None
    takes_any = any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())
    options = _options_in(make_loop, factors)

    # An argument for each arm, and an arm for each required argument.
    named = {
        one.name: one
        for one in signature.parameters.values()
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    }
    known = ", ".join(named) or "none"
    for factor in factors:
        if factor not in named and not takes_any and factor not in options:
            raise UsageError(
                f"{name} does not take the arm {factor!r}. Its arguments are: {known}. Add the argument, or rename the"
                " arm."
            )
    takes_seed = "seed" in named
    given = {factor: None for factor in factors if factor not in options} | ({"seed": 0} if takes_seed else {})
    try:
        signature.bind(**given)
    except TypeError as error:
        raise UsageError(
            f"{name} cannot be called with the arms of the study ({', '.join(given) or 'none'}): {error}. Give the"
            " argument a default, or make it an arm."
        ) from None
    return takes_seed


def _options_in(make_loop: Callable[..., Any], factors: Mapping[str, Any]) -> list[str]:
    """Return the arms that are options of `start`, because the factory takes no argument of that name."""
    taken = inspect.signature(make_loop).parameters
    return [factor for factor in factors if factor in START_OPTIONS and factor not in taken]


def _name_of(make_loop: Any) -> str:
    name = getattr(make_loop, "__name__", None)
    return name if isinstance(name, str) else type(make_loop).__name__
