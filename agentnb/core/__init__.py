"""The core: events, the state they fold to, what a state wants, and what a loop design is."""
