// Whether another tracer observes the calls of this thread.
#pragma once
#include "cpython.h"

namespace smelt::calls {

// True under torch.jit.trace, torch.fx.symbolic_trace, torch.func transforms, functionalization, and every torch
// dispatch mode (make_fx, export, fake tensors, operator counters): these must observe the function's own operators.
// Also true where torch.compiler.set_stance forces eager calls or a backend. Takes a few nanoseconds.
bool is_traced();

// Whether a debugger or coverage tool follows the lines of this thread: sys.settrace, or a tool of sys.monitoring. Tools
// that count calls only, as profilers do, are none.
bool lines_are_traced();

// The backend that torch.compiler.set_stance forces (owned); null without one, and under another tracer.
PyObject* forced_backend();

}  // namespace smelt::calls
