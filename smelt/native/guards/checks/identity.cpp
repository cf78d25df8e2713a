// Checks on identity: an object, its class, aliases between nodes; unchanged functions.
#include "guards/guard_checks.h"
#include "guards/name_lookup.h"

#include <algorithm>

namespace smelt::guards {

namespace {

struct TypeIs : Check {
    PyTypeObject* type;
    explicit TypeIs(PyTypeObject* type) : type(type) {}
    bool holds(PyObject* x, Pass&) override { return Py_TYPE(x) == type; }
    bool stamp(PyObject* x, Stamps& stamps, bool same) override { return same && stamps.take_type(x); }
    bool proves_layout() const override { return true; }

    static CheckPtr make(PyObject* value, Building& b) {
        if (!PyType_Check(value)) return wrong_value(b, "a class", value);
        return std::make_unique<TypeIs>(reinterpret_cast<PyTypeObject*>(hold(b.held, value)));
    }
};
const CheckKind type_kind("type", TypeIs::make);

struct ObjectIs : Check {
    PyObject* value;
    explicit ObjectIs(PyObject* value) : value(value) {}
    bool holds(PyObject* x, Pass&) override { return x == value; }
    bool stamp(PyObject*, Stamps&, bool same) override { return same; }
    bool proves_layout() const override { return true; }
};

struct WeakObjectIs : Check {
    PyObject* address;  // not owned: only meaningful while the weak reference is alive
    PyObject* reference;
    WeakObjectIs(PyObject* value, PyObject* reference) : address(value), reference(reference) {}
    bool holds(PyObject* x, Pass&) override { return x == address && referent(reference) == x; }
    bool stamp(PyObject*, Stamps&, bool same) override { return same; }
    bool proves_layout() const override { return true; }

    // Keeps alive static classes, and objects without weak references.
    static CheckPtr make(PyObject* value, Building& b) {
        if (!PyType_SUPPORTS_WEAKREFS(Py_TYPE(value))) return std::make_unique<ObjectIs>(hold(b.held, value));
        PyObject* reference = PyWeakref_NewRef(value, nullptr);
        if (!reference) return nullptr;
        b.held.take(reference);
        return std::make_unique<WeakObjectIs>(value, reference);
    }
};
const CheckKind id_kind("id", WeakObjectIs::make);

struct SameAs : Check {
    int node;
    std::vector<int> nodes;
    explicit SameAs(int node) : node(node), nodes{node} {}
    bool holds(PyObject* x, Pass& pass) override { return x == pass.values[node]; }
    const std::vector<int>* about() const override { return &nodes; }

    static CheckPtr make(PyObject* value, Building& b) {
        int node;
        if (!to_node(value, b, &node)) return wrong_value(b, "the index of an earlier node", value);
        return std::make_unique<SameAs>(node);
    }
};
const CheckKind alias_kind("alias", SameAs::make);

struct AllDistinct : Check {
    std::vector<int> nodes;
    std::vector<PyObject*> known, now, sorted;  // known: addresses that were found to be distinct
    explicit AllDistinct(std::vector<int> nodes) : nodes(std::move(nodes)) {}
    const std::vector<int>* about() const override { return &nodes; }

    bool holds(PyObject*, Pass& pass) override {
        now.clear();
        for (int node : nodes) now.push_back(pass.values[node]);
        if (now == known) return true;
        sorted = now;
        std::sort(sorted.begin(), sorted.end());
        if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) return false;
        known = now;
        return true;
    }
};
const CheckKind distinct_kind("distinct", make_about_nodes<AllDistinct>);

struct FunctionIs : Check {
    PyObject *code, *defaults, *keyword_defaults;
    FunctionIs(PyObject* code, PyObject* defaults, PyObject* keyword_defaults)
        : code(code),
          defaults(defaults == Py_None ? nullptr : defaults),
          keyword_defaults(keyword_defaults == Py_None ? nullptr : keyword_defaults) {}
    bool holds(PyObject* x, Pass&) override {
        if (!PyFunction_Check(x)) return false;
        return PyFunction_GET_CODE(x) == code && PyFunction_GET_DEFAULTS(x) == defaults &&
               PyFunction_GET_KW_DEFAULTS(x) == keyword_defaults;
    }
    bool stamp(PyObject* x, Stamps& stamps, bool) override {  // the tree owns all three
        auto* function = reinterpret_cast<PyFunctionObject*>(x);
        return stamps.take(&function->func_code) && stamps.take(&function->func_defaults) &&
               stamps.take(&function->func_kwdefaults);
    }

    static CheckPtr make(PyObject* value, Building& b) {
        if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) != 3)
            return wrong_value(b, "(code, defaults, keyword defaults)", value);
        PyObject* const* parts = reinterpret_cast<PyTupleObject*>(value)->ob_item;
        return std::make_unique<FunctionIs>(hold(b.held, parts[0]), hold(b.held, parts[1]),
                                            hold(b.held, parts[2]));
    }
};
const CheckKind function_kind("function", FunctionIs::make);

}  // namespace

}  // namespace smelt::guards
