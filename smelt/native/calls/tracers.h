// Whether another tracer looks at the calls of this thread.
#pragma once

namespace smelt::calls {

// True under torch.jit.trace, torch.fx.symbolic_trace, transforms of torch.func, functionalization, and every torch dispatch
// mode (make_fx, export, fake tensors, counters of operators): whoever looks must see the operators of the function
// itself. Takes a few nanoseconds.
bool is_traced();

}  // namespace smelt::calls
