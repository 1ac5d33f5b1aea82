"""Studies: many runs of a loop over a grid (`agentnb.study`), or from the steps of a run (`agentnb.resample`)."""

from agentnb.studies.driving import StudyRun
from agentnb.studies.resampling import Resampling, Sample, resample
from agentnb.studies.study import Study, study

__all__ = ["Resampling", "Sample", "Study", "StudyRun", "resample", "study"]
