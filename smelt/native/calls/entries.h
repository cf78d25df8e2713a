// The compiled entries of a function, and where they are kept: with a code object, or with one wrapper.
//
// What always holds, under the GIL: an entry list is an immutable tuple; a change replaces it, so a walker that holds a
// reference is never disturbed.
#pragma once
#include "cpython.h"

#include <utility>

namespace smelt::calls {

// The compiled variants of a function: a tuple of (guard or None, compiled or None, only or None), or null when
// empty. `only`, a callable: compiled(*slots, inputs) is the one item of the tuple only(inputs). A BySizes stands for those
// of its instances that launch kernels alone.
struct EntryTable {
    PyObject* entries = nullptr;  // owned
    Py_ssize_t recent = 0;        // index of the last entry that answered: it is tried first
    bool closed = false;          // the callback is not asked any more

    Py_ssize_t count() const { return entries ? PyTuple_GET_SIZE(entries) : 0; }

    void replace(PyObject* fresh) {
        recent = 0;
        PyObject* old = std::exchange(entries, fresh);
        Py_XDECREF(old);
    }
};

struct CodeState {  // lives as long as its code object
    EntryTable table;
    bool skip = false;  // smelt's own code: runs as it is, with this thread's hook off, callees too
};

inline Py_ssize_t extra_index;  // of CodeStates, in the data of code objects

inline CodeState* find_code_state(PyCodeObject* code) {
    return static_cast<CodeState*>(get_code_extra(code, extra_index));
}

bool code_data_is_read_back();  // as it was stored

CodeState* code_state(PyCodeObject* code);  // makes it if need be; null with a Python error

inline bool closed(const EntryTable& own, const CodeState* state) {
    return own.closed || (state && state->table.closed);
}

}  // namespace smelt::calls
