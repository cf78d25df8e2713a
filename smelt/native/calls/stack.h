// How much of the C stack this thread has left.
//
// A call of compiled code takes C stack where one of Python code would not, so the depth is watched here, not by
// CPython's count of calls.
#pragma once
#include "calls/state.h"

namespace smelt::calls {

struct Stack {
    uintptr_t floor = UINTPTR_MAX;  // below this address it counts as used up; UINTPTR_MAX: not known yet
    uintptr_t low = 0;              // its lowest address
};
__attribute__((tls_model("initial-exec"))) inline constinit thread_local Stack stack;

void measure_stack();

inline bool low_on_stack() {
    uintptr_t here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
    if (LIKELY(here >= stack.floor)) return false;
    if (stack.floor == UINTPTR_MAX) measure_stack();
    return here < stack.floor && here >= stack.low;  // below stack.low: not the thread's own stack
}

PyObject* raise_depth();  // null, with a RecursionError

}  // namespace smelt::calls
