// State of this thread, and counters.
//
// Invariant, under the GIL: a thread is in Hooked mode only while native code called by `call_with_frame_hook` runs.
// In the VM, in code marked by `skip` and everywhere else it is Off.
#pragma once
#include "cpython.h"

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

namespace smelt::calls {

enum class Mode { Off, Hooked };

struct Thread {
    Mode mode = Mode::Off;
    PyObject* vm = nullptr;  // in Hooked mode: what Python functions are diverted to; a Scope owns it
    // The arguments (a tuple, borrowed) of a tail call's target that runs eagerly, until its frame releases them.
    // They are set just before that frame is created, so the frame has references of its own when another frame
    // releases them.
    PyObject* arguments = nullptr;
};
// initial-exec: one load per frame instead of a call to __tls_get_addr.
__attribute__((tls_model("initial-exec"))) inline constinit thread_local Thread current;

struct Statistics {
    long hits = 0, misses = 0, callbacks = 0, diverted = 0;
};
inline Statistics statistics;

inline PyObject* object(void* p) {
    return static_cast<PyObject*>(p);
}

}  // namespace smelt::calls
