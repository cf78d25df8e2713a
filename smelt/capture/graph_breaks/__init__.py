"""Graph breaks: the compiled frame runs one instruction eagerly and tail-calls a resume function for the rest.

`graph_break.py` plans a break from the frames of the VM; `frame_exits.py` has the other exit, a return.
`break_instructions.py` and `await_breaks.py` have the Python source of each instruction that can run eagerly,
`uncaptured_loops.py` that of a loop, `callback_functions.py` that of C calls with Python callbacks, `temporaries.py` that of
an expression that drops what the instruction returns.

`resume_points.py` describes where a frame resumes: `live_locals.py` and `finalizers.py` select the locals that it needs,
`suspended_frames.py` the stack of a frame that waits for a callee. `resume_bytecode.py` and `resume_functions.py` build a
function from a resume point, `continuation_stack.py` one function from the frames of nested calls;
`resume_argument_facts.py` has the sizes and numbers that are known of its arguments, `code_positions.py` the lines that
its frames show. `profitability.py` decides what is worth compiling, on the objects of `reachable_objects.py`.

Iterators and generators that leave the compiled frame: `iterator_reconstruction.py`, `itertools_state.py`,
`generator_reconstruction.py`, `generator_steps.py`; compiled generator functions and coroutines: `generator_entry.py`.
"""
