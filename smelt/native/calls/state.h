// What the parts of this folder share: what this thread is doing, and counters.
//
// What always holds, under the GIL: a thread's mode is Window only while native code called by `call_window` runs; in
// the VM, in code marked by `skip` and everywhere else it is Off.
#pragma once
#include "cpython.h"

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

namespace smelt::calls {

enum class Mode { Off, Window };

struct Thread {
    Mode mode = Mode::Off;
    PyObject* vm = nullptr;  // in Window mode: what called-back functions are handed to; owned by a Scope
    // The arguments (a tuple, borrowed) of a tail's target that runs eagerly, until its frame lets go of them. They are set just
    // before that frame is made, so whoever lets go of them, the frame has references of its own.
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
