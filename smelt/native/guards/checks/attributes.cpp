// Checks that an object or a module lacks an attribute.
#include "guards/checks/check_makers.h"
#include "guards/name_lookup.h"

namespace smelt::guards {

namespace {

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

// Whether a slot that a class declares in `__slots__` is set.
struct SlotHolds : Check {
    PyObject* name;
    bool wanted;
    SlotHolds(PyObject* name, bool wanted) : name(name), wanted(wanted) {}
    bool holds(PyObject* x, Pass& pass) override {
        PyObject* slot = _PyType_Lookup(Py_TYPE(x), name);
        if (!slot || Py_TYPE(slot) != &PyMemberDescr_Type) return false;
        PyObject* held =
            pass.keep(PyMemberDescr_Type.tp_descr_get(slot, x, reinterpret_cast<PyObject*>(Py_TYPE(x))));
        return (held != nullptr) == wanted;
    }
};

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

template <class Kind>
CheckPtr make_about_name(PyObject* value, Building& b) {
    PyObject* name = hold_name(b.held, value);
    return name ? std::make_unique<Kind>(name) : nullptr;
}

}  // namespace

CheckPtr make_not_in_dict(PyObject* value, Building& b) {
    return make_about_name<NotInDict>(value, b);
}

CheckPtr make_no_attr(PyObject* value, Building& b) {
    return make_about_name<NoAttribute>(value, b);
}

CheckPtr make_slot(PyObject* value, Building& b) {
    PyObject* name;
    int wanted;
    if (!PyTuple_Check(value) || !PyArg_ParseTuple(value, "Up", &name, &wanted))
        return wrong_value("slot", "a name and whether it holds something", value);
    PyObject* held = hold_name(b.held, name);
    return held ? std::make_unique<SlotHolds>(held, wanted) : nullptr;
}

CheckPtr make_no_hooks(PyObject*, Building&) {
    return std::make_unique<NoHooks>();
}

}  // namespace smelt::guards
