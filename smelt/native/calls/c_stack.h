// The remaining C stack of this thread.
//
// A call of compiled code uses C stack where a call of Python code would not. So the depth is checked here and not by
// CPython's count of calls.
#pragma once
#include "calls/thread_state.h"

namespace smelt::calls {

struct Stack {
    uintptr_t floor = UINTPTR_MAX;  // addresses below count as exhausted; UINTPTR_MAX: not measured yet
    uintptr_t low = 0;              // the lowest address of the stack
};
__attribute__((tls_model("initial-exec"))) inline constinit thread_local Stack stack;

void measure_stack();

inline bool low_on_stack() {
    uintptr_t here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
    if (LIKELY(here >= stack.floor)) return false;
    if (stack.floor == UINTPTR_MAX) measure_stack();
    return here < stack.floor && here >= stack.low;  // below stack.low: another stack than the thread's own
}

PyObject* raise_depth();  // null, with a RecursionError

}  // namespace smelt::calls
