"""Graph breaks: where a frame can be left, the instruction that runs for real, and the resume function that goes on.

`graph_break.py` makes a break of the frames of the VM; `break_instructions.py` has the instructions as source;
`resume_points.py` says where frames go on, `live_locals.py` and `finalizers.py` what they need there,
`resume_functions.py` and `resume_bytecode.py` make functions of that; `continuation_stack.py` is for frames that wait
for others, `iterator_reconstruction.py` for iterators, `generator_reconstruction.py` and `generator_steps.py` for
generators, `generator_entry.py` and `await_breaks.py` for coroutines, `callback_functions.py` for what code of C
calls; `profitability.py` says what is compiled there, `reachable_objects.py` what is near an object, `frame_exits.py`
what else can end a frame.
"""
