// Whether another tracer observes the calls of this thread.
#pragma once

namespace smelt::calls {

// True under torch.jit.trace, torch.fx.symbolic_trace, torch.func transforms, functionalization, and every torch
// dispatch mode (make_fx, export, fake tensors, operator counters): these must observe the function's own operators.
// Takes a few nanoseconds.
bool is_traced();

}  // namespace smelt::calls
