"""The past: a journal made portable, gone on from, changed at one place, or walked through."""
