// How the guard tree gets from an object to the next; the kinds are in accessors.cpp.
#pragma once
#include "guards/pass.h"
#include "guards/stamps.h"

#include <memory>

namespace smelt::guards {

// Reads an object; null if there is none. Runs no user code and raises nothing: what cannot be read is missing.
struct Accessor {
    virtual ~Accessor() = default;
    virtual PyObject* read(PyObject* base, Pass& pass) = 0;
    // Called after `read`: takes the stamps (stamps.h) that show, as long as they agree, that the same object would be
    // read again. With `same` they need to show it for this very base only, without it for any object at its address.
    // False if no stamps can show it.
    virtual bool stamp(PyObject* /*base*/, Stamps&, bool /*same*/) { return false; }
    // Whether other threads may run while it reads from what `parent` (or null) gives: it calls what may be code of
    // smelt's in Python, or waits.
    virtual bool lets_others_run(const Accessor* /*parent*/) const { return false; }
};

using AccessorPtr = std::unique_ptr<Accessor>;

struct AccessorKind {
    const char* name;
    bool is_root;  // reads from the call or is a constant: its node has no parent
    AccessorPtr (*make)(PyObject* key, Held& held);
};

const AccessorKind* find_accessor(PyObject* name);  // null with a Python error

}  // namespace smelt::guards
