"""Programs of frameworks, each compiled as a user of the framework compiles it: trainers, savers, wrappers, solvers.

A program gets a `Run`, whose `compile` is `smelt.compile`, or returns its argument in the eager run. It returns facts, which
must be equal in both runs (losses, results, names of classes), and a step, which is timed. It runs in a folder of its own;
the files that it leaves there are facts too. `programs.py` has the table of programs, which the other modules fill.
"""

from benchmarks.frameworks import (  # noqa: F401  (they fill the table)
    hugging_face,
    lightning_loops,
    probability,
    structures,
    torch_utilities,
    vision,
)
