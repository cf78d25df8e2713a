"""Graph breaks: where a frame can be left, the instruction that runs for real, and the resume function that goes on.

`graph_break.py` makes a break of the frames of the VM; `instructions.py` has the instructions as source; `points.py` says
where frames go on, `liveness.py` and `finalization.py` what they need there, `resume.py` and `assembler.py` make
functions of that; `chains.py` is for frames that wait for others, `suspended.py` for iterators, `generators.py` and
`steps.py` for generators, `beginnings.py` and `awaiting.py` for coroutines, `given_functions.py` for what code of C
calls; `worth.py` says what is compiled there, `nearby.py` what is near an object, `endings.py` what else can end a frame.
"""
