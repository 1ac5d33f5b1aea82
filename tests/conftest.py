"""Settings of the tests as a whole."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Three test processes on two cores: how long an example takes says nothing here.
settings.register_profile("agentnb", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("agentnb")
