// Checks that an object or a module lacks an attribute.
#include "guards/guard_checks.h"
#include "guards/name_lookup.h"

namespace smelt::guards {

namespace {

template <class Kind>
CheckPtr make_about_name(PyObject* value, Building& b) {
    PyObject* name = hold_name(b.held, value);
    return name ? std::make_unique<Kind>(name) : nullptr;
}

struct NotInDict : Check {
    Name name;
    Membership absent;
    explicit NotInDict(PyObject* name) : name{name}, absent{name, false} {}
    bool holds(PyObject* x, Pass&) override {
        PyObject* dict = PyType_Check(x) ? type_dict(x) : instance_attributes(x).dict;
        return dict ? absent.holds(dict) : !name.in_instance(x);
    }
    bool stamp(PyObject* x, Stamps& stamps, bool) override { return stamps.take_attributes(x); }
};
const CheckKind not_in_dict_kind("not_in_dict", make_about_name<NotInDict>);

struct NoAttribute : Check {
    NotInDict own;
    Name dicts[3];
    Membership absent[3];
    explicit NoAttribute(PyObject* name)
        : own(name),
          dicts{{names.parameters}, {names.buffers}, {names.modules}},
          absent{{name, false}, {name, false}, {name, false}} {}

    bool holds(PyObject* x, Pass& pass) override {
        if (!own.holds(x, pass)) return false;
        for (int i = 0; i < 3; i++) {
            PyObject* dict = dicts[i].in_instance(x);
            if (dict && PyDict_Check(dict) && PyDict_GET_SIZE(dict) && !absent[i].holds(dict)) return false;
        }
        return true;
    }

    bool stamp(PyObject* x, Stamps& stamps, bool same) override {
        if (!own.stamp(x, stamps, same)) return false;
        for (Name& name : dicts) {
            PyObject* dict = name.in_instance(x);
            if (dict && PyDict_Check(dict) && !stamps.take_dict(dict)) return false;
        }
        return true;
    }
};
const CheckKind no_attr_kind("no_attr", make_about_name<NoAttribute>);

// Whether a slot that a class declares in `__slots__` is set.
struct SlotIsSet : Check {
    PyObject* name;
    bool wanted;
    SlotIsSet(PyObject* name, bool wanted) : name(name), wanted(wanted) {}
    bool holds(PyObject* x, Pass& pass) override {
        PyObject* slot = _PyType_Lookup(Py_TYPE(x), name);
        if (!slot || Py_TYPE(slot) != &PyMemberDescr_Type) return false;
        PyObject* held =
            pass.keep(PyMemberDescr_Type.tp_descr_get(slot, x, reinterpret_cast<PyObject*>(Py_TYPE(x))));
        return (held != nullptr) == wanted;
    }

    static CheckPtr make(PyObject* value, Building& b) {
        PyObject* name;
        int wanted;
        if (!PyTuple_Check(value) || !PyArg_ParseTuple(value, "Up", &name, &wanted))
            return wrong_value(b, "a name and whether the slot is set", value);
        PyObject* held = hold_name(b.held, name);
        return held ? std::make_unique<SlotIsSet>(held, wanted) : nullptr;
    }
};
const CheckKind slot_kind("slot", SlotIsSet::make);

struct NoHooks : Check {
    Name hooks[4] = {
        {names.forward_hooks}, {names.forward_pre_hooks}, {names.backward_hooks}, {names.backward_pre_hooks}};
    bool holds(PyObject* x, Pass&) override {
        for (Name& name : hooks) {
            PyObject* dict = name.in_instance(x);
            if (!dict || !PyDict_Check(dict) || PyDict_GET_SIZE(dict)) return false;
        }
        return true;
    }

    bool stamp(PyObject* x, Stamps& stamps, bool) override {
        if (!stamps.take_instance(x)) return false;
        for (Name& name : hooks)
            if (!stamps.take(dict_size_word(name.in_instance(x)))) return false;
        return true;
    }
};
const CheckKind no_hooks_kind("no_hooks", make_without_value<NoHooks>);

}  // namespace

}  // namespace smelt::guards
