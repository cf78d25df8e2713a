// The objects that a guard tree collected from a call, in the order of its graph's inputs.
#pragma once
#include "cpython.h"

namespace smelt::guards {

// Owns references: other threads may run before the graph has the objects. A plan takes a few of them as an array; a
// tuple is created for more objects, or for Python.
class Collected {
  public:
    Collected() = default;
    Collected(const Collected&) = delete;
    Collected& operator=(const Collected&) = delete;
    ~Collected() {
        if (tuple_)
            Py_DECREF(tuple_);
        else
            for (Py_ssize_t i = 0; i < size_; i++) Py_DECREF(few_[i]);
    }

    // Call it once: `object_at(i)` is the i-th object, borrowed. Returns false if there is no memory.
    template <class ObjectAt>
    bool take(Py_ssize_t size, ObjectAt object_at) {
        PyObject** items = few_;
        if (size > kFew) {
            if (!(tuple_ = PyTuple_New(size))) {
                PyErr_Clear();
                return false;
            }
            items = &PyTuple_GET_ITEM(tuple_, 0);
        }
        for (Py_ssize_t i = 0; i < size; i++) items[i] = Py_NewRef(object_at(i));
        size_ = size;
        return true;
    }

    PyObject* const* data() const { return tuple_ ? &PyTuple_GET_ITEM(tuple_, 0) : few_; }
    Py_ssize_t size() const { return size_; }

    // Borrowed; null with a Python error.
    PyObject* tuple() {
        if (tuple_) return tuple_;
        const CollectorOff off;  // no finalizer runs between the guards and the graph
        PyObject* made = PyTuple_New(size_);
        for (Py_ssize_t i = 0; made && i < size_; i++) PyTuple_SET_ITEM(made, i, few_[i]);
        return tuple_ = made;
    }

  private:
    static constexpr Py_ssize_t kFew = 8;
    PyObject* few_[kFew];  // unused if there is a tuple
    PyObject* tuple_ = nullptr;
    Py_ssize_t size_ = 0;
};

}  // namespace smelt::guards
