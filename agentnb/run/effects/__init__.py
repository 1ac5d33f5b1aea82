"""Effects: what a state wants, started, performed and ended. A request to the model, or a call of a tool."""
