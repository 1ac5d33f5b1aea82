"""Studies: many runs of a loop over a grid of arms, inputs and repeats. `agentnb.study` makes one."""

from agentnb.studies.driving import StudyRun
from agentnb.studies.study import Study, study

__all__ = ["Study", "StudyRun", "study"]
