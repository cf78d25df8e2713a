// The interface of checks, and the registration of their kinds, which are in checks/.
#pragma once
#include "guards/guard_pass.h"
#include "guards/memory_stamps.h"

#include <map>
#include <memory>
#include <utility>

namespace smelt::guards {

// A fact about the object of a node. Runs no user code and raises nothing: what cannot be read is a mismatch.
struct Check {
    int guard = -1;  // the index of its guard
    virtual ~Check() = default;
    // Whether the fact holds for `x`, the object that the node read in this pass.
    virtual bool holds(PyObject* x, Pass& pass) = 0;
    // Called after `holds` returned false: the index of the guard that failed, for a check of several guards.
    virtual int failed(PyObject* /*x*/, Pass&) { return guard; }
    // Called after `holds` returned true: takes the stamps (memory_stamps.h) that prove, as long as they match, that
    // it would return true again. With `same` they need to prove it for this object only, without it for any object
    // at its address. Returns false if no stamps can prove it.
    virtual bool stamp(PyObject* /*x*/, Stamps&, bool /*same*/) { return false; }
    // The nodes of a check that only compares which objects several nodes read. It holds again while each of them
    // reads the same object.
    virtual const std::vector<int>* about() const { return nullptr; }
    // Whether, if it holds, the object has the same memory layout as the object that stamps were taken of.
    virtual bool proves_layout() const { return false; }
};

using CheckPtr = std::unique_ptr<Check>;

struct TensorFacts;

// The context in which a check is created.
struct Building {
    OwnedReferences& held;
    int node;  // the node of the check; the check may refer to this node and earlier ones
    std::map<std::vector<int64_t>, std::shared_ptr<TensorFacts>>& facts;  // of the tree
    std::vector<bool>& words;  // of a pass: whether this check or an earlier one writes them
    const char* kind;
};

// A kind of check: its name, which is also that of a class in smelt/guards/guard_kinds.py, and its factory, which returns
// null with a Python error. A constant of this type registers the kind.
class CheckKind {
  public:
    const char* name;
    CheckPtr (*make)(PyObject* value, Building& building);

    CheckKind(const char* name, CheckPtr (*make)(PyObject*, Building&))
        : name(name), make(make), next_(first_) {
        first_ = this;
    }
    static const CheckKind* find(PyObject* name);  // null with a Python error

  private:
    const CheckKind* next_;
    inline static const CheckKind* first_ = nullptr;
};

// A factory returns this for an invalid value: null, with a TypeError unless another error is set.
CheckPtr wrong_value(const Building& b, const char* expected, PyObject* value);

// Reads the indices of nodes that a check on `b.node` may refer to; false if they are invalid.
bool to_node(PyObject* value, const Building& b, int* node);
bool to_nodes(PyObject* value, const Building& b, std::vector<int>* nodes);

// Factories of checks without a value, and of checks on the nodes whose indices are the value.
template <class Kind>
CheckPtr make_without_value(PyObject*, Building&) {
    return std::make_unique<Kind>();
}

template <class Kind>
CheckPtr make_about_nodes(PyObject* value, Building& b) {
    std::vector<int> nodes;
    if (!to_nodes(value, b, &nodes)) return wrong_value(b, "indices of earlier nodes", value);
    return std::make_unique<Kind>(std::move(nodes));
}

}  // namespace smelt::guards
