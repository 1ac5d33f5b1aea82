"""The errors agentnb raises on purpose; `agentnb.core.errors` shows the tree."""

from agentnb.core.errors import *  # noqa: F403  # one list of them, and it is there
from agentnb.core.errors import __all__ as __all__
