// How the guard tree reads an object from another; the kinds are in accessors.cpp.
#pragma once
#include "guards/guard_pass.h"
#include "guards/memory_stamps.h"

#include <memory>

namespace smelt::guards {

// Reads an object; null if there is none. Runs no user code and raises nothing: what cannot be read is missing.
struct Accessor {
    virtual ~Accessor() = default;
    virtual PyObject* read(PyObject* base, Pass& pass) = 0;
    // Called after `read`: takes the stamps (memory_stamps.h) that prove, as long as they match, that the same object
    // would be read again. With `same` they need to prove it for this base only, without it for any object at its
    // address. Returns false if no stamps can prove it.
    virtual bool stamp(PyObject* /*base*/, Stamps&, bool /*same*/) { return false; }
    // Whether the read may release the GIL when `parent` (or null) produced the base: it may call smelt's Python
    // code, or block.
    virtual bool may_release_gil(const Accessor* /*parent*/) const { return false; }
};

using AccessorPtr = std::unique_ptr<Accessor>;

struct AccessorKind {
    const char* name;
    bool is_root;  // reads a slot or is a constant: its node has no parent
    AccessorPtr (*make)(PyObject* key, OwnedReferences& held);
};

const AccessorKind* find_accessor(PyObject* name);  // null with a Python error

}  // namespace smelt::guards
