// The accessors: one class per kind of step in smelt/guards/source.py.
#include "guards/accessors.h"
#include "cpython_iterators.h"
#include "guards/kind_table.h"
#include "guards/name_lookup.h"

#include "torch_python.h"

namespace smelt::guards {

namespace {

struct Argument : Accessor {
    Py_ssize_t slot;
    explicit Argument(Py_ssize_t slot) : slot(slot) {}
    PyObject* read(PyObject*, Pass& pass) override {
        return slot < pass.slot_count ? pass.slots[slot] : nullptr;
    }
};

struct Constant : Accessor {
    PyObject* value;
    explicit Constant(PyObject* value) : value(value) {}
    PyObject* read(PyObject*, Pass&) override { return value; }
    bool stamp(PyObject*, Stamps&, bool) override { return true; }
};

struct Attribute : Accessor {
    Name name;
    explicit Attribute(PyObject* name) : name{name} {}
    PyObject* read(PyObject* base, Pass&) override {
        if (!PyType_Check(base)) return name.in_instance(base);
        PyObject* dict = type_dict(base);
        return dict ? name.in_dict(dict) : nullptr;
    }
    bool stamp(PyObject* base, Stamps& stamps, bool) override { return stamps.take_attributes(base); }
};

// Whether the getter of a property is a C function, as pybind11's are.
bool has_native_getter(PyObject* property) {
    PyObject* getter = PyObject_GetAttr(property, names.fget);
    if (!getter) return PyErr_Clear(), false;
    PyObject* function = PyInstanceMethod_Check(getter) ? PyInstanceMethod_GET_FUNCTION(getter) : getter;
    const bool native = PyCFunction_Check(function);
    Py_DECREF(getter);
    return native;
}

// Whether reading an attribute that the class `type` resolves to `found` would run Python code.
bool runs_python(PyObject* found) {
    if (!found) return false;
    PyTypeObject* type = Py_TYPE(found);
    if (!type->tp_descr_get || type == tuplegetter_type) return false;
    return made_by_python(type) || (type == &PyProperty_Type && !has_native_getter(found));
}

struct Member : Accessor {
    PyObject* name;
    explicit Member(PyObject* name) : name(name) {}
    PyObject* read(PyObject* base, Pass& pass) override {
        if (name == names.annotations && annotations_wait(base)) return nullptr;
        if (runs_python(_PyType_Lookup(Py_TYPE(base), name))) return nullptr;
        NoTorchFunction no_torch_function;
        if (!PyType_Check(base)) return pass.keep(PyObject_GenericGetAttr(base, name));
        if (runs_python(_PyType_Lookup(reinterpret_cast<PyTypeObject*>(base), name))) return nullptr;
        return pass.keep(PyType_Type.tp_getattro(base, name));
    }
};

// Reads an attribute of an nn.Module: from the instance's own dictionary, then from parameters, buffers and modules.
// The dictionary that had the name last is asked first, after a check that the ones before it still lack it.
struct ModuleParameter : Accessor {
    PyObject* name;
    Name own;
    Membership own_absent;
    Name dicts[3];
    Name keys[3];
    Membership absent[2];
    int which = 0;

    explicit ModuleParameter(PyObject* name)
        : name(name),
          own{name},
          own_absent{name, false},
          dicts{{names.parameters}, {names.buffers}, {names.modules}},
          keys{{name}, {name}, {name}},
          absent{{name, false}, {name, false}} {}

    PyObject* read(PyObject* base, Pass&) override {
        PyObject* all = instance_attributes(base).dict;
        if (!all || !own_absent.holds(all))
            if (PyObject* value = own.in_instance(base)) return value;
        for (int i = 0; i < which; i++) {
            PyObject* dict = dicts[i].in_instance(base);
            if (!dict || !PyDict_Check(dict)) return nullptr;
            if (PyDict_GET_SIZE(dict) && !absent[i].holds(dict)) which = i;
        }
        for (int i = which; i < 3; i++) {
            PyObject* dict = dicts[i].in_instance(base);
            if (!dict || !PyDict_Check(dict)) return nullptr;
            PyObject* value = keys[i].in_dict(dict);
            if (!value) continue;
            which = i;
            return value;
        }
        which = 0;
        return nullptr;
    }

    bool stamp(PyObject* base, Stamps& stamps, bool) override {
        PyObject* all = instance_attributes(base).dict;
        if (!all || !stamps.take_instance(base)) return false;
        if (own.in_dict(all)) return true;
        for (int i = 0; i <= which; i++) {
            PyObject* dict = dicts[i].in_dict(all);
            if (!dict || !PyDict_Check(dict) || !stamps.take_dict(dict)) return false;
        }
        return true;
    }
};

PyObject* at_index(PyObject* const* items, Py_ssize_t size, Py_ssize_t index) {
    if (index < 0) index += size;
    return index >= 0 && index < size ? items[index] : nullptr;
}

struct Item : Accessor {
    PyObject* key;
    Py_hash_t hash;
    Name name;             // key, if it is a string
    Py_ssize_t index = 0;  // key, if it is an integer
    bool is_index;

    Item(PyObject* key, Py_hash_t hash)
        : key(key), hash(hash), name{PyUnicode_CheckExact(key) ? key : nullptr} {
        is_index = PyLong_Check(key);
        if (is_index) index = PyLong_AsSsize_t(key);
        if (PyErr_Occurred()) {
            PyErr_Clear();
            is_index = false;
        }
    }

    PyObject* read(PyObject* base, Pass& pass) override {
        if (PyDict_Check(base)) {
            if (name.name) return name.in_dict(base);
            PyObject* value = _PyDict_GetItem_KnownHash(base, key, hash);
            if (!value) PyErr_Clear();
            return value;
        }
        if (is_index && PyList_Check(base))
            return at_index(reinterpret_cast<PyListObject*>(base)->ob_item, PyList_GET_SIZE(base), index);
        if (is_index && PyTuple_Check(base))
            return at_index(reinterpret_cast<PyTupleObject*>(base)->ob_item, PyTuple_GET_SIZE(base), index);
        if (is_index && PyObject_TypeCheck(base, deque_type)) return pass.keep(deque_item(base));
        if (made_by_python(Py_TYPE(base))) return nullptr;
        return pass.keep(PyObject_GetItem(base, key));
    }

    bool stamp(PyObject* base, Stamps& stamps, bool same) override {
        return PyDict_Check(base) ? stamps.take_dict(base) : same && is_index && PyTuple_Check(base);
    }

    PyObject* deque_item(PyObject* base) const {
        return deque_type->tp_as_sequence->sq_item(base, index < 0 ? index + Py_SIZE(base) : index);
    }
};

struct Cell : Accessor {
    Py_ssize_t index;
    explicit Cell(Py_ssize_t index) : index(index) {}
    PyObject* read(PyObject* base, Pass&) override {
        if (!PyFunction_Check(base)) return nullptr;
        PyObject* closure = PyFunction_GET_CLOSURE(base);
        if (!closure || index < 0 || index >= PyTuple_GET_SIZE(closure)) return nullptr;
        PyObject* cell = PyTuple_GET_ITEM(closure, index);
        return PyCell_Check(cell) ? PyCell_GET(cell) : nullptr;
    }
};

struct Default : Accessor {
    Py_ssize_t index;
    explicit Default(Py_ssize_t index) : index(index) {}
    PyObject* read(PyObject* base, Pass&) override {
        PyObject* defaults = PyFunction_Check(base) ? PyFunction_GET_DEFAULTS(base) : nullptr;
        if (!defaults) return nullptr;
        return at_index(reinterpret_cast<PyTupleObject*>(defaults)->ob_item, PyTuple_GET_SIZE(defaults),
                        index);
    }
};

struct KeywordDefault : Accessor {
    Name name;
    explicit KeywordDefault(PyObject* name) : name{name} {}
    PyObject* read(PyObject* base, Pass&) override {
        PyObject* defaults = PyFunction_Check(base) ? PyFunction_GET_KW_DEFAULTS(base) : nullptr;
        return defaults ? name.in_dict(defaults) : nullptr;
    }
    bool stamp(PyObject* base, Stamps& stamps, bool) override {
        auto* function = reinterpret_cast<PyFunctionObject*>(base);
        return stamps.take(&function->func_kwdefaults) && stamps.take_dict(function->func_kwdefaults);
    }
};

struct TypeOf : Accessor {
    PyObject* read(PyObject* base, Pass&) override { return reinterpret_cast<PyObject*>(Py_TYPE(base)); }
};

struct DictOf : Accessor {
    PyObject* read(PyObject* base, Pass&) override {
        return PyType_Check(base) ? type_dict(base) : instance_dict(base);
    }
    bool stamp(PyObject* base, Stamps& stamps, bool) override { return stamps.take_attributes(base); }
};

struct Ahead : Accessor {
    Py_ssize_t count;
    explicit Ahead(Py_ssize_t count) : count(count) {}
    PyObject* read(PyObject* base, Pass& pass) override { return pass.keep(item_ahead(base, count)); }
};

struct Part : Accessor {
    IteratorPart part;
    explicit Part(IteratorPart part) : part(part) {}
    PyObject* read(PyObject* base, Pass& pass) override { return pass.keep(part(base)); }
};

// A float of a CPU tensor, by its index in row-major order.
struct Element : Accessor {
    Py_ssize_t index;
    explicit Element(Py_ssize_t index) : index(index) {}
    PyObject* read(PyObject* base, Pass& pass) override {
        if (!THPVariable_Check(base)) return nullptr;
        const at::Tensor& tensor = THPVariable_Unpack(base);
        if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.device().is_cpu()) return nullptr;
        if (tensor.is_neg() || !tensor.has_storage() || index < 0 || index >= tensor.numel()) return nullptr;
        const void* data = tensor.const_data_ptr();
        if (!data) return nullptr;
        switch (tensor.scalar_type()) {
            case at::kFloat:
                return number(static_cast<const float*>(data)[offset_in(tensor)], pass);
            case at::kDouble:
                return number(static_cast<const double*>(data)[offset_in(tensor)], pass);
            default:
                return nullptr;
        }
    }

  private:
    int64_t offset_in(const at::Tensor& tensor) const {
        int64_t left = index, found = 0;
        for (int64_t dim = tensor.dim() - 1; dim >= 0; --dim) {
            found += left % tensor.size(dim) * tensor.stride(dim);
            left /= tensor.size(dim);
        }
        return found;
    }
    static PyObject* number(double value, Pass& pass) { return pass.keep(PyFloat_FromDouble(value)); }
};

struct CallOf : Accessor {
    PyObject* read(PyObject* base, Pass& pass) override {
        NoTorchFunction no_torch_function;
        return pass.keep(PyObject_CallNoArgs(base));
    }
    // Weak references and C functions do not release the GIL, but `tensor.item` does.
    bool may_release_gil(const Accessor* parent) const override {
        auto* constant = dynamic_cast<const Constant*>(parent);
        return constant ? !PyCFunction_Check(constant->value) && !PyWeakref_Check(constant->value)
                        : dynamic_cast<const Member*>(parent) != nullptr;
    }
};

PyTypeObject* script_module_type;  // torch._C.ScriptModule, set on first use

// An attribute of TorchScript's own module object, which creates it for each read.
struct ScriptAttribute : Accessor {
    PyObject* name;
    explicit ScriptAttribute(PyObject* name) : name(name) {}
    PyObject* read(PyObject* base, Pass& pass) override {
        if (Py_TYPE(base) != script_module_type) return nullptr;
        return pass.keep(PyObject_CallMethodOneArg(base, names.getattr, name));
    }
};

AccessorPtr make_script_attribute(PyObject* key, OwnedReferences& held) {
    if (!script_module_type) {
        PyObject* module = PyImport_ImportModule("torch._C");
        PyObject* found = module ? PyObject_GetAttrString(module, "ScriptModule") : nullptr;
        Py_XDECREF(module);
        script_module_type = reinterpret_cast<PyTypeObject*>(found);
    }
    PyObject* name = script_module_type ? hold_name(held, key) : nullptr;
    return name ? std::make_unique<ScriptAttribute>(name) : nullptr;
}

AccessorPtr make_argument(PyObject* key, OwnedReferences&) {
    Py_ssize_t slot = PyLong_AsSsize_t(key);
    if (slot < 0 && !PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "GuardTree: negative argument slot");
    return slot < 0 ? nullptr : std::make_unique<Argument>(slot);
}

AccessorPtr make_constant(PyObject* key, OwnedReferences& held) {
    return std::make_unique<Constant>(hold(held, key));
}

AccessorPtr make_part(PyObject* key, OwnedReferences&) {
    IteratorPart part = find_iterator_part(key);
    return part ? std::make_unique<Part>(part) : nullptr;
}

AccessorPtr make_item(PyObject* key, OwnedReferences& held) {
    Py_hash_t hash = PyObject_Hash(key);
    if (hash == -1) return nullptr;
    if (!compares_natively(key)) {
        PyErr_Format(PyExc_TypeError, "GuardTree: comparing the key %R runs Python code", key);
        return nullptr;
    }
    return std::make_unique<Item>(PyUnicode_CheckExact(key) ? hold_name(held, key) : hold(held, key), hash);
}

template <class Kind>
AccessorPtr make_named(PyObject* key, OwnedReferences& held) {
    PyObject* name = hold_name(held, key);
    return name ? std::make_unique<Kind>(name) : nullptr;
}

template <class Kind>
AccessorPtr make_indexed(PyObject* key, OwnedReferences&) {
    Py_ssize_t index = PyLong_AsSsize_t(key);
    return PyErr_Occurred() ? nullptr : std::make_unique<Kind>(index);
}

template <class Kind>
AccessorPtr make_plain(PyObject*, OwnedReferences&) {
    return std::make_unique<Kind>();
}

constexpr AccessorKind kAccessors[] = {
    {"arg", true, make_argument},
    {"const", true, make_constant},
    {"attr", false, make_named<Attribute>},
    {"member", false, make_named<Member>},
    {"param", false, make_named<ModuleParameter>},
    {"item", false, make_item},
    {"cell", false, make_indexed<Cell>},
    {"default", false, make_indexed<Default>},
    {"kwdefault", false, make_named<KeywordDefault>},
    {"type", false, make_plain<TypeOf>},
    {"dict", false, make_plain<DictOf>},
    {"ahead", false, make_indexed<Ahead>},
    {"part", false, make_part},
    {"element", false, make_indexed<Element>},
    {"script", false, make_script_attribute},
    {"call", false, make_plain<CallOf>},
};

}  // namespace

const AccessorKind* find_accessor(PyObject* name) {
    return find_row(kAccessors, name, "accessor");
}

}  // namespace smelt::guards
