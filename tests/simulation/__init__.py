"""A simulation of agentnb: random worlds in virtual time, all held to one model.

A world has a loop of one of the designs, with loops inside it down to the third level, models that fail, tools of
every kind, people who decide, edit, undo, steer, pause, fork and leave, consumers, and often a store that fails or
whose process is killed. Time is virtual (`loop`), so a hang is an error and a day takes a moment. What happened is held
to one model (`model`): what ran is what was shown and decided, and the record has all of it.

    python -m tests.simulation              the 300 seeds of every push
    python -m tests.simulation 10000        the seeds 0 to 9999, on all processors
    python -m tests.simulation --seed 4711  one seed: prints the world, what people did, every event, and what is wrong
    python -m tests.simulation --seed 4711 --shrink    the smallest world that fails like that one

A seed that fails here fails everywhere, until the worlds themselves are changed. So a fault that was found becomes a
small test of its own, in the words of the suite that it belongs to, and is not kept as a seed.
"""
