"""Approvals: decisions about tool calls, made by a policy, a person or a deadline."""
