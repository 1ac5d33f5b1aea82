"""The generator form: a loop that is written top to bottom and runs on the same core as other loops (SEMANTICS.md).

A generator yields commands (`agentnb.loops.want`), receives their results, and returns the run's output. Like every
loop it is a pure decision over the state: `advance` replays the recorded results to the generator and returns the next
event that its current command needs. A generator cannot be stored. To restore a run, a new generator receives all
recorded results, and no command is performed again. A run can therefore be restored at any position and in any process,
as long as the generator is deterministic: the same results must lead to the same commands. Otherwise the run ends with
an error that shows the step that differs.

During a run the generator is kept (`State.memo`), so that the cost of a turn does not depend on the number of earlier
turns. Code in a `finally` of the generator runs whenever the generator is dropped, so it must not have effects.

The loop itself is `agentnb.loops.base.GeneratorLoop`. This package has the parts that it uses.
"""
