"""The core: events, the state that they fold to, the effects that a state requires, and the loop design."""
