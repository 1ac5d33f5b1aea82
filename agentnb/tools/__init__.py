"""Tools: what a model can call, made from functions."""

from agentnb.core.tools import Tool
from agentnb.tools.function import FunctionTool, as_tools, tool

__all__ = ["FunctionTool", "Tool", "as_tools", "tool"]
