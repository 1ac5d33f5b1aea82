"""Approvals: who decides about a call, and what was decided. A policy, a person, or nobody."""
