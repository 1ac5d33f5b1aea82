"""Tools: what a model can call, made from functions and from loops."""

from agentnb.core.tools import Tool
from agentnb.tools.adapt import as_tools
from agentnb.tools.context import ToolContext
from agentnb.tools.function import FunctionTool, tool
from agentnb.tools.loop import loop_of

__all__ = ["FunctionTool", "Tool", "ToolContext", "as_tools", "loop_of", "tool"]
