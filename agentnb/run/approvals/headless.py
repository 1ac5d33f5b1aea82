"""Nobody there: who decides about a call that waits for a person where none can come.

A notebook that a program executes, or a script, must come to its end. There the policy that was declared for it
answers, and without one the answer is no (ARCHITECTURE.md, 4. Promises). What it decides is a fact like any decision,
and says why and how to declare another.

Whether somebody is there is not guessed: only where the environment has a reason to say that nobody is
(`Environment.absence`) anything is decided here, and a page that has spoken to one of our panels is a person, from then
on.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from agentnb.core.errors import UsageError
from agentnb.run import host as hosting
from agentnb.run.approvals.policy import Policy, Verdict, make_policy

POLICY_VARIABLE = "AGENTNB_HEADLESS"
ATTENDED_VARIABLE = "AGENTNB_ATTENDED"
PATIENCE = 5.0
"""Seconds that a question is left to code that may decide it, where no policy is declared."""
DECLARED_PATIENCE = 1.0
"""The same where one is: nobody is surprised by it."""
IN_BACKGROUND = 60.0
"""The same for a run in the background that nothing waits for: a later cell may decide about its calls."""
STEPPED = 5.0
"""The same for a run that is stepped, which finds the question again and again: a loop that steps it to its end."""

_YES_OR_NO = {"yes": True, "1": True, "true": True, "no": False, "0": False, "false": False}


@dataclass(frozen=True, slots=True)
class Headless:
    """What holds where nobody is there: the policy, the seconds a question stands first, who is said to be there."""

    policy: Any = None
    after: float = PATIENCE
    attended: bool | None = None

    @property
    def absence(self) -> str | None:
        """Why nobody can be asked here, in words; None where somebody may be there."""
        if self.attended is not None:
            return None if self.attended else "it was declared that nobody is"
        return None if _page_has_spoken else hosting.environment.absence()

    def decider(self) -> Policy:
        """The policy that answers. Raises UsageError where it is none."""
        policy = self.policy
        if policy in (None, False, "reject"):
            return lambda call, context: Verdict("reject")
        if isinstance(policy, str) and policy != "approve" and not policy.endswith(".json"):
            raise UsageError(
                f"The policy for when nobody is there is 'approve', 'reject', a callable or rules, not {policy!r}."
            )
        made = make_policy(True if policy == "approve" else policy)
        assert made is not None  # it is only for None
        return made

    def __repr__(self) -> str:
        policy = "none declared, so reject" if self.policy is None else repr(self.policy)
        here = f"nobody is there: {self.absence}" if self.absence is not None else "somebody may be there, and is asked"
        return f"<Headless policy: {policy}, after {self.after:g} s; {here}>"


_declared: Headless | None = None
_page_has_spoken = False


def headless(policy: Any = "reject", *, after: float | None = None, attended: bool | None = None) -> Headless:
    """Declare who decides about calls that wait for a person, where nobody is there. Holds for this process.

    policy: `"reject"`, `"approve"`, or what `approve=` of `start` takes, a callable of the call or rules; what it
    leaves to a person is rejected. None: as if none were declared. after: seconds that a question is left to your own
    code first; 1 by default, and never less than 60 where the run goes on in the background and nothing waits for it.
    attended: False where nobody is there, True where somebody is, whatever it looks like; None to find out.

    The environment declares the same from outside, and this call goes before it: AGENTNB_HEADLESS=approve or reject,
    AGENTNB_ATTENDED=no or yes. Gives what is in force now, to be read. Raises UsageError for what is no policy.
    """
    global _declared
    given: Any = after
    if given is not None and (not isinstance(given, (int, float)) or isinstance(given, bool) or given < 0):
        raise UsageError(f"headless(after=...) takes a number of seconds, not {after!r}.")
    if after is None:
        after = PATIENCE if policy is None else DECLARED_PATIENCE
    declared = Headless(policy, after, attended)
    declared.decider()
    _declared = declared
    return declared


def in_force() -> Headless:
    """What was declared, by `headless` or else by the environment."""
    if _declared is not None:
        return _declared
    policy = os.environ.get(POLICY_VARIABLE, "").lower() or None
    if policy not in (None, "approve"):
        policy = "reject"  # a word that is none has not said yes
    attended = _YES_OR_NO.get(os.environ.get(ATTENDED_VARIABLE, "").lower())
    return Headless(policy, PATIENCE if policy is None else DECLARED_PATIENCE, attended)


def page_has_spoken() -> None:
    """Somebody has a panel open in a page: from now on this process is taken for attended."""
    global _page_has_spoken
    _page_has_spoken = True
