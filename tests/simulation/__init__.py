"""A simulation of agentnb: random worlds in virtual time, all checked against one model.

A world has a loop of one of the designs, nested loops down to the third level, models that fail, tools of every kind,
people who decide, edit, undo, steer, pause, fork and leave, consumers, and often a store that fails or whose process is
killed. Time is virtual (`loop`), so a hang is an error and a day takes a moment. Each run is checked against one model
(`model`): only what was shown and decided has run, and the recording is complete.

    python -m tests.simulation              the 300 seeds of every push
    python -m tests.simulation 10000        the seeds 0 to 9999, on all processors
    python -m tests.simulation --seed 4711  one seed: prints the world, the acts of people, every event, and the faults
    python -m tests.simulation --seed 4711 --shrink    the smallest world with the same kind of fault

A seed that fails here fails on every machine, until the generation of worlds is changed. So do not keep a seed for a
fault that was found: write a small test of its own, in the suite that it belongs to.
"""
