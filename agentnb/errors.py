"""The errors that agentnb raises deliberately; the docstring of `agentnb.core.errors` shows the class tree."""

from agentnb.core.errors import *  # noqa: F403  # `core.errors` has the only list of the names
from agentnb.core.errors import __all__ as __all__
