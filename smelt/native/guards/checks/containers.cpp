// Checks on the length and the keys of lists, tuples, dictionaries and sets.
#include "guards/guard_checks.h"
#include "guards/checks/values.h"
#include "guards/name_lookup.h"
#include "cpython_sets.h"

namespace smelt::guards {

namespace {

Py_ssize_t length(PyObject* x) {  // -1 if it cannot be read without user code
    if (PyList_Check(x) || PyTuple_Check(x)) return Py_SIZE(x);
    if (PyDict_Check(x)) return PyDict_GET_SIZE(x);
    if (PyAnySet_Check(x)) return PySet_GET_SIZE(x);
    if (PyObject_TypeCheck(x, deque_type)) return Py_SIZE(x);
    if (made_by_python(Py_TYPE(x))) return -1;
    Py_ssize_t size = PyObject_Size(x);
    if (size < 0) PyErr_Clear();
    return size;
}

struct LengthIs : Check {
    Py_ssize_t value;
    explicit LengthIs(Py_ssize_t value) : value(value) {}
    bool holds(PyObject* x, Pass&) override { return length(x) == value; }
    bool stamp(PyObject* x, Stamps& stamps, bool) override {
        if (PyDict_Check(x)) return stamps.take_dict(x);
        if (PyAnySet_Check(x)) return stamps.take(set_size_word(x));
        return (PyList_Check(x) || PyTuple_Check(x)) && stamps.take_size(x);
    }

    static CheckPtr make(PyObject* value, Building& b) {
        Py_ssize_t size = PyLong_AsSsize_t(value);
        if (size < 0) return wrong_value(b, "a length", value);
        return std::make_unique<LengthIs>(size);
    }
};
const CheckKind len_kind("len", LengthIs::make);

struct KeysAre : Check {
    PyObject* value;  // a tuple: keys of a dictionary, elements of a set, in order
    DictVersion unchanged;
    explicit KeysAre(PyObject* value) : value(value) {}

    bool holds(PyObject* x, Pass&) override {
        if (PyAnySet_Check(x)) return elements(x);
        if (!PyDict_Check(x)) return false;
        if (PyDict_GET_SIZE(x) != PyTuple_GET_SIZE(value)) return false;
        if (PyODict_Check(x)) return ordered_keys(x);
        if (unchanged.holds(x)) return true;
        PyObject *key, *item;
        for (Py_ssize_t at = 0, i = 0; PyDict_Next(x, &at, &key, &item); i++)
            if (!same_leaf(key, PyTuple_GET_ITEM(value, i))) return false;
        unchanged.set(x);
        return true;
    }

    bool stamp(PyObject* x, Stamps& stamps, bool) override {
        return PyDict_Check(x) && !PyODict_Check(x) && stamps.take_dict(x);
    }

    bool elements(PyObject* set) const {
        if (PySet_GET_SIZE(set) != PyTuple_GET_SIZE(value)) return false;
        PyObject* item;
        Py_hash_t hash;
        for (Py_ssize_t at = 0, i = 0; _PySet_NextEntry(set, &at, &item, &hash); i++)
            if (!same_leaf(item, PyTuple_GET_ITEM(value, i))) return false;
        return true;
    }

    // An OrderedDict has an order of its own, which may change without a change of the dictionary's version.
    bool ordered_keys(PyObject* x) {
        PyObject* iterator = PyODict_Type.tp_iter(x);
        bool same = iterator;
        for (Py_ssize_t i = 0; same && i < PyTuple_GET_SIZE(value); i++) {
            PyObject* key = PyIter_Next(iterator);
            same = key && same_leaf(key, PyTuple_GET_ITEM(value, i));
            Py_XDECREF(key);
        }
        Py_XDECREF(iterator);
        if (PyErr_Occurred()) PyErr_Clear();
        return same;
    }

    static CheckPtr make(PyObject* value, Building& b) {
        if (!PyTuple_Check(value)) return wrong_value(b, "a tuple", value);
        return std::make_unique<KeysAre>(hold(b.held, value));
    }
};
const CheckKind keys_kind("keys", KeysAre::make);

struct SetTableIs : Check {
    PyObject* value;  // a result of set_table
    explicit SetTableIs(PyObject* value) : value(value) {}
    bool holds(PyObject* x, Pass&) override { return PyAnySet_Check(x) && has_table(x, value); }

    static CheckPtr make(PyObject* value, Building& b) {
        if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) != 3)
            return wrong_value(b, "a result of set_table", value);
        return std::make_unique<SetTableIs>(hold(b.held, value));
    }
};
const CheckKind set_table_kind("set_table", SetTableIs::make);

struct Contains : Check {
    Membership membership;
    Contains(PyObject* key, bool wanted) : membership{key, wanted} {}
    bool holds(PyObject* x, Pass&) override {
        if (PyDict_Check(x)) return membership.holds(x);
        if (!PyAnySet_Check(x)) return false;
        return set_contains(x, membership.key, membership.hash) == membership.wanted;
    }
    bool stamp(PyObject* x, Stamps& stamps, bool) override { return PyDict_Check(x) && stamps.take_dict(x); }

    static CheckPtr make(PyObject* value, Building& b) {
        if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) != 2)
            return wrong_value(b, "(key, bool)", value);
        PyObject* key = PyTuple_GET_ITEM(value, 0);
        int wanted = PyObject_IsTrue(PyTuple_GET_ITEM(value, 1));
        if (wanted < 0 || PyObject_Hash(key) == -1) return nullptr;
        if (!compares_natively(key))
            return wrong_value(b, "a key that is compared without Python code", value);
        return std::make_unique<Contains>(hold(b.held, key), wanted);
    }
};
const CheckKind contains_kind("contains", Contains::make);

}  // namespace

}  // namespace smelt::guards
