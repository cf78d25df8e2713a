// The check on a class: its version is the recorded one, or the attributes that the trace depends on are unchanged.
//
// A class's version changes with any attribute of the class or of a base. If it differs, the dictionaries along the method
// resolution order are compared with the expected attributes (guards/class_facts.py, which also describes the tuples that this
// file reads). If they agree, the new version is recorded.
#include "guards/guard_checks.h"
#include "guards/checks/values.h"
#include "guards/name_lookup.h"

namespace smelt::guards {

namespace {

enum Tag : long { kLeaf, kIdentity, kAddress, kParts };  // class_facts.py has the same numbers

PyObject* part(PyObject* tuple, Py_ssize_t index) {
    return PyTuple_GET_ITEM(tuple, index);
}

bool is_expected(PyObject* x, PyObject* expected);

// An exact property, staticmethod or classmethod, whose attributes run no code.
bool has_expected_parts(PyObject* x, PyObject* names, PyObject* values) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        PyObject* found = PyObject_GenericGetAttr(x, part(names, i));
        if (!found) return PyErr_Clear(), false;
        bool same = is_expected(found, part(values, i));
        Py_DECREF(found);  // `x` holds it
        if (!same) return false;
    }
    return true;
}

bool is_expected(PyObject* x, PyObject* expected) {
    if (PyWeakref_Check(expected)) return referent(expected) == x;
    auto type = [&] { return reinterpret_cast<PyObject*>(Py_TYPE(x)); };
    switch (PyLong_AsLong(part(expected, 0))) {
        case kLeaf:
            return same_leaf(x, part(expected, 1));
        case kIdentity:
            return x == part(expected, 1);
        case kAddress:
            return type() == part(expected, 1) && x == PyLong_AsVoidPtr(part(expected, 2));
        default:
            return type() == part(expected, 1) && has_expected_parts(x, part(expected, 2), part(expected, 3));
    }
}

bool is_special(PyObject* name) {
    Py_ssize_t length;
    const char* text = PyUnicode_AsUTF8AndSize(name, &length);
    if (!text) return PyErr_Clear(), true;
    return length > 4 && text[0] == '_' && text[1] == '_' && text[length - 1] == '_' &&
           text[length - 2] == '_';
}

struct ClassIs : Check {
    unsigned int version;
    PyObject *names, *classes;
    ClassIs(unsigned int version, PyObject* names, PyObject* classes)
        : version(version), names(names), classes(classes) {}

    bool holds(PyObject* x, Pass&) override {
        if (!PyType_Check(x)) return false;
        auto* type = reinterpret_cast<PyTypeObject*>(x);
        if (has_class_version(type, version)) return true;
        if (!has_expected_bases(type)) return false;
        version = type_version_tag(type);
        return true;
    }

    bool stamp(PyObject* x, Stamps& stamps, bool same) override {
        auto* type = reinterpret_cast<PyTypeObject*>(x);
        if (!version || version & kOwnVersion) return false;
        return same && stamps.take(&type->tp_flags) &&
               stamps.take(&type->tp_version_tag);  // half of the second word is padding
    }

    bool has_expected_bases(PyTypeObject* type) const {
        PyObject* mro = type->tp_mro;
        if (!mro || PyTuple_GET_SIZE(classes) == 0 || PyTuple_GET_SIZE(mro) != PyTuple_GET_SIZE(classes))
            return false;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(mro); i++)
            if (!is_expected_class(part(mro, i), part(classes, i))) return false;
        return true;
    }

    bool decides(PyObject* name, PyObject* value) const {
        return is_special(name) || PySet_Contains(names, name) != 0 || Py_TYPE(value)->tp_descr_get;
    }

    // `expected`: (weak reference to the class, version, {name: expected value}, names that other guards cover).
    // None in place of these names: all attributes are compared.
    bool is_expected_class(PyObject* cls, PyObject* expected) const {
        if (referent(part(expected, 0)) != cls) return false;
        auto* type = reinterpret_cast<PyTypeObject*>(cls);
        unsigned int then = static_cast<unsigned int>(PyLong_AsUnsignedLong(part(expected, 1)));
        return then == kImmutable || has_class_version(type, then) ||
               has_expected_attributes(type_dict(cls), part(expected, 2), part(expected, 3));
    }

    bool has_expected_attributes(PyObject* own, PyObject* expected, PyObject* covered) const {
        PyObject *name, *value;
        Py_ssize_t position = 0, found = 0;
        while (PyDict_Next(own, &position, &name, &value)) {
            if (!PyUnicode_CheckExact(name)) return false;
            if (PyObject* then = PyDict_GetItem(expected, name)) {
                if (!is_expected(value, then)) return false;
                found++;
            } else if (covered == Py_None || (PySet_Contains(covered, name) != 1 && decides(name, value))) {
                return false;
            }
        }
        return found == PyDict_GET_SIZE(expected);
    }

    static constexpr unsigned int kImmutable = 0;

    static CheckPtr make(PyObject* value, Building& b) {
        unsigned int version;
        PyObject *names, *classes;
        if (!PyTuple_Check(value) ||
            !PyArg_ParseTuple(value, "IO!O!", &version, &PyFrozenSet_Type, &names, &PyTuple_Type, &classes))
            return PyErr_Clear(), wrong_value(b, "(version, names, classes)", value);
        return std::make_unique<ClassIs>(version, hold(b.held, names), hold(b.held, classes));
    }
};
const CheckKind type_version_kind("type_version", ClassIs::make);

}  // namespace

}  // namespace smelt::guards
