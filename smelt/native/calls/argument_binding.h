// Binds a call's arguments to the argument slots of a function that has no frame yet.
//
// Guards and compiled functions take the slots: positional, keyword-only, the tuple of *args, the dict of **kwargs.
#pragma once
#include "cpython.h"

namespace smelt {

inline Py_ssize_t slot_count(PyCodeObject* code) {
    return code->co_argcount + code->co_kwonlyargcount + !!(code->co_flags & CO_VARARGS) +
           !!(code->co_flags & CO_VARKEYWORDS);
}

class Slots {
  public:
    Slots() = default;
    Slots(const Slots&) = delete;
    Slots& operator=(const Slots&) = delete;
    ~Slots() {
        if (borrowed_) return;
        for (Py_ssize_t i = 0; i < size_; i++) Py_XDECREF(values_[i]);
        if (values_ != local_) delete[] values_;
    }

    // Returns 1: bound; 0: the arguments do not fit, the interpreter must raise the TypeError; -1: a Python error.
    // `args` must outlive the slots.
    int bind(PyFunctionObject* fn, PyObject* const* args, Py_ssize_t count, PyObject* names) {
        auto* code = reinterpret_cast<PyCodeObject*>(fn->func_code);
        Py_ssize_t size = slot_count(code);
        if (!names && count == code->co_argcount && count == size) {
            values_ = const_cast<PyObject**>(args);
            size_ = size;
            borrowed_ = true;
            return 1;
        }
        allocate(size);
        if (!bind_positional(code, args, count)) return PyErr_Occurred() ? -1 : 0;
        if (names && !bind_keywords(code, args + count, names)) return PyErr_Occurred() ? -1 : 0;
        if (!fill_defaults(fn, code)) return PyErr_Occurred() ? -1 : 0;
        return 1;
    }

    PyObject* const* data() const { return values_; }
    Py_ssize_t size() const { return size_; }

    PyObject* tuple() const {
        PyObject* tuple = PyTuple_New(size_);
        for (Py_ssize_t i = 0; tuple && i < size_; i++) PyTuple_SET_ITEM(tuple, i, Py_NewRef(values_[i]));
        return tuple;
    }

  private:
    static constexpr Py_ssize_t kLocal = 24;

    void allocate(Py_ssize_t size) {
        if (size > kLocal) values_ = new PyObject*[size];
        size_ = size;
        for (Py_ssize_t i = 0; i < size; i++) values_[i] = nullptr;
    }

    // These steps return false if the arguments do not fit or a Python error is set.

    bool bind_positional(PyCodeObject* code, PyObject* const* args, Py_ssize_t count) {
        Py_ssize_t positional = code->co_argcount, more = count > positional ? count - positional : 0;
        for (Py_ssize_t i = 0; i < count - more; i++) values_[i] = Py_NewRef(args[i]);
        if (code->co_flags & CO_VARARGS) {
            PyObject* rest = PyTuple_New(more);
            if (!rest) return false;
            for (Py_ssize_t i = 0; i < more; i++) PyTuple_SET_ITEM(rest, i, Py_NewRef(args[positional + i]));
            values_[positional + code->co_kwonlyargcount] = rest;
        } else if (more) {
            return false;
        }
        return !(code->co_flags & CO_VARKEYWORDS) || (values_[size_ - 1] = PyDict_New());
    }

    // The slot that a keyword fills; -1 if no parameter has that name.
    static Py_ssize_t find_parameter(PyCodeObject* code, PyObject* name) {
        Py_ssize_t end = code->co_argcount + code->co_kwonlyargcount;
        for (Py_ssize_t i = code->co_posonlyargcount; i < end; i++)
            if (PyTuple_GET_ITEM(code->co_localsplusnames, i) == name) return i;
        for (Py_ssize_t i = code->co_posonlyargcount; i < end; i++)
            if (PyUnicode_Compare(PyTuple_GET_ITEM(code->co_localsplusnames, i), name) == 0) return i;
        return -1;
    }

    bool bind_keywords(PyCodeObject* code, PyObject* const* values, PyObject* names) {
        for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(names); k++) {
            PyObject* name = PyTuple_GET_ITEM(names, k);
            if (!PyUnicode_CheckExact(name)) return false;
            Py_ssize_t slot = find_parameter(code, name);
            if (slot >= 0) {
                if (values_[slot]) return false;  // two values for one parameter
                values_[slot] = Py_NewRef(values[k]);
            } else if (!(code->co_flags & CO_VARKEYWORDS) ||
                       PyDict_SetItem(values_[size_ - 1], name, values[k]) < 0) {
                return false;
            }
        }
        return true;
    }

    bool fill_defaults(PyFunctionObject* fn, PyCodeObject* code) {
        Py_ssize_t positional = code->co_argcount, end = positional + code->co_kwonlyargcount;
        PyObject *defaults = fn->func_defaults, *by_name = fn->func_kwdefaults;
        Py_ssize_t first = positional - (defaults ? PyTuple_GET_SIZE(defaults) : 0);
        for (Py_ssize_t i = 0; i < end; i++) {
            if (values_[i]) continue;
            PyObject* value = nullptr;
            if (i < positional && i >= first)
                value = PyTuple_GET_ITEM(defaults, i - first);
            else if (i >= positional && by_name)
                value = PyDict_GetItemWithError(by_name, PyTuple_GET_ITEM(code->co_localsplusnames, i));
            if (!value) return false;
            values_[i] = Py_NewRef(value);
        }
        return true;
    }

    PyObject* local_[kLocal];
    PyObject** values_ = local_;
    Py_ssize_t size_ = 0;
    bool borrowed_ = false;  // values_ is the caller's argument array
};

}  // namespace smelt
