// The facts that the guard tree checks; the kinds are in checks/, the table of them in check.cpp.
#pragma once
#include "guards/pass.h"
#include "guards/stamps.h"

#include <map>
#include <memory>
#include <utility>

namespace smelt::guards {

// A fact about the object of a node. Runs no user code and raises nothing: what cannot be read is a mismatch.
struct Check {
    int guard = -1;  // its number among the guards the tree was built from
    virtual ~Check() = default;
    virtual bool holds(PyObject* x, Pass& pass) = 0;
    // Takes the stamps under which what was just found of `x` holds again; `same`: for this very object, or else for
    // any at its address. False: there are none.
    virtual bool stamp(PyObject* /*x*/, Stamps&, bool /*same*/) { return false; }
    // The other nodes of a fact that only says which objects are the same: it holds again while all nodes read the same.
    virtual const std::vector<int>* about() const { return nullptr; }
    // Whether it has shown that the object has the layout of the one that stamps were taken of.
    virtual bool proves_layout() const { return false; }
};

using CheckPtr = std::unique_ptr<Check>;

struct TensorLooks;

// What a check is made in.
struct Building {
    Held& held;
    int node;  // the node that the check is on: it may refer to this one and those before it
    std::map<std::vector<int64_t>, std::shared_ptr<TensorLooks>>& looks;
};

struct CheckKind {
    const char* name;
    CheckPtr (*make)(PyObject* value, Building& building);
};

const CheckKind* find_check(PyObject* name);  // null with a Python error

// For what makes a check of a value that it cannot be made of: null, with a TypeError if no other error is set.
CheckPtr wrong_value(const char* kind, const char* expected, PyObject* value);

// The indices of nodes that a check on `b.node` may refer to; false if they are not.
bool to_node(PyObject* value, const Building& b, int* node);
bool to_nodes(PyObject* value, const Building& b, std::vector<int>* nodes);

// A check about several nodes, which it is made of.
template <class Kind>
CheckPtr make_about_nodes(PyObject* value, Building& b) {
    std::vector<int> nodes;
    if (!to_nodes(value, b, &nodes))
        return wrong_value("distinct/no_overlap", "indices of earlier nodes", value);
    return std::make_unique<Kind>(std::move(nodes));
}

}  // namespace smelt::guards
