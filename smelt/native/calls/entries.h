// The compiled entries of a function. A code object or a wrapper owns them.
//
// Invariant, under the GIL: an entry list is an immutable tuple and a change replaces it, so a thread that iterates
// over it with a reference is not disturbed.
#pragma once
#include "cpython.h"

#include <utility>

namespace smelt::calls {

// The compiled variants of a function: a tuple of (guard or None, compiled or None, only or None); null if empty.
// `only` is a callable: compiled(*slots, inputs) returns the one item of the tuple only(inputs). A SizeDispatch as
// `only` is used for those of its instances that only launch kernels.
struct EntryTable {
    PyObject* entries = nullptr;  // owned
    Py_ssize_t recent = 0;        // index of the most recent entry that answered: it is tried first
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
    bool skip = false;  // code of smelt: runs with the hook of this thread off, callees included
};

inline Py_ssize_t extra_index;  // index of CodeState in the extra data of code objects

inline CodeState* find_code_state(PyCodeObject* code) {
    return static_cast<CodeState*>(get_code_extra(code, extra_index));
}

bool code_extra_round_trips();  // whether stored data is read back

CodeState* code_state(PyCodeObject* code);  // created if necessary; null with a Python error

inline bool closed(const EntryTable& own, const CodeState* state) {
    return own.closed || (state && state->table.closed);
}

}  // namespace smelt::calls
