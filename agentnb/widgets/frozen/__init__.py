"""The frozen panel: what a saved notebook shows, and where there is no kernel."""
