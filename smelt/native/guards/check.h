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
    // Whether it is a fact of `x`, the object that its node read in this pass.
    virtual bool holds(PyObject* x, Pass& pass) = 0;
    // Called after `holds` was false: the number of the guard that it is about, for a check that is of several.
    virtual int failed(PyObject* /*x*/, Pass&) { return guard; }
    // Called after `holds` was true: takes the stamps (stamps.h) that show, as long as they agree, that it would be true
    // again. With `same` they need to show it of this very object only, without it of any object at its address. False
    // if no stamps can show it.
    virtual bool stamp(PyObject* /*x*/, Stamps&, bool /*same*/) { return false; }
    // For a check that only compares which objects several nodes read: these nodes. It holds again while each of them
    // reads the same object.
    virtual const std::vector<int>* about() const { return nullptr; }
    // Whether, where it holds, the object's memory is laid out as that of the object that stamps were taken of.
    virtual bool proves_layout() const { return false; }
};

using CheckPtr = std::unique_ptr<Check>;

struct TensorFacts;

// What a check is made in.
struct Building {
    Held& held;
    int node;  // the node that the check is on: it may refer to this one and those before it
    std::map<std::vector<int64_t>, std::shared_ptr<TensorFacts>>& facts;  // those of the tree
    std::vector<bool>& words;  // of a pass, whether they are written before this check, or by it
};

struct CheckKind {
    const char* name;
    CheckPtr (*make)(PyObject* value, Building& building);
};

const CheckKind* find_check(PyObject* name);  // null with a Python error

// What makes a check returns this for a value of which none can be made: null, with a TypeError unless another error is
// set.
CheckPtr wrong_value(const char* kind, const char* expected, PyObject* value);

// The indices of nodes that a check on `b.node` may refer to; false if they are not.
bool to_node(PyObject* value, const Building& b, int* node);
bool to_nodes(PyObject* value, const Building& b, std::vector<int>* nodes);

// A check that is about several nodes. `value`: their indices.
template <class Kind>
CheckPtr make_about_nodes(PyObject* value, Building& b) {
    std::vector<int> nodes;
    if (!to_nodes(value, b, &nodes))
        return wrong_value("distinct/no_overlap", "indices of earlier nodes", value);
    return std::make_unique<Kind>(std::move(nodes));
}

}  // namespace smelt::guards
