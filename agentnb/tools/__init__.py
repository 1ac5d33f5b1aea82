"""Tools: what a model can call, made from functions, loops, objects of other toolkits, and MCP servers.

`function` has `@tool`, with `signature` (schemas), `context` (what a function receives) and `threads` (where it runs).
`loop` makes tools of loops, `adapt` of anything else, `mcp` of MCP servers, `recorded` of a recording.
"""

from agentnb.core.tools import Tool
from agentnb.tools.adapt import as_tools
from agentnb.tools.context import ToolContext
from agentnb.tools.function import FunctionTool, tool
from agentnb.tools.loop import loop_of

__all__ = ["FunctionTool", "Tool", "ToolContext", "as_tools", "loop_of", "tool"]
