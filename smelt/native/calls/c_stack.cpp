#include "calls/c_stack.h"

#include <pthread.h>

namespace smelt::calls {

void measure_stack() {
    constexpr size_t kReserve = 512u << 10;
    stack.floor = 0;
    pthread_attr_t attributes;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0) return;
    void* low;
    size_t size;
    if (pthread_attr_getstack(&attributes, &low, &size) == 0) {
        stack.low = reinterpret_cast<uintptr_t>(low);
        stack.floor = stack.low + (size / 4 < kReserve ? size / 4 : kReserve);
    }
    pthread_attr_destroy(&attributes);
}

PyObject* raise_depth() {
    PyErr_SetString(PyExc_RecursionError, "maximum recursion depth exceeded (C stack)");
    return nullptr;
}

}  // namespace smelt::calls
