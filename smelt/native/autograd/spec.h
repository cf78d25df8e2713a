// What a Differentiable is built from, and the backwards that were compiled for it.
#pragma once
#include <ATen/core/Tensor.h>
#include <Python.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <string>
#include <vector>

#include "layout.h"

namespace smelt::autograd {

using Mask = c10::SmallVector<char, 16>;  // per tangent: defined

size_t count_defined(const Mask& mask);

struct Tangent {
    size_t output;  // position among the forward's outputs
    Layout layout;  // that the backward relies on
};

// Where a saved value comes from.
struct SavedSource {
    enum class Kind : uint8_t { primal, output, temporary } kind;
    size_t index;
    Mask readers;  // the tangents whose gradients read it; empty: all
};

// Gradients that the same tangents of a group contribute to, by position: of inputs, then of the outputs in `through`.
struct End {
    Mask tangents;
    std::vector<size_t> edges;
};

// Saved values that the same tangents of a group read.
struct Bucket {
    Mask readers;
    std::vector<size_t> saved;
    size_t first;  // of them among all that the group saves
};

// Outputs that the backward is computed for together.
struct NodeSpec {
    std::vector<size_t> tangents;
    bool whole = false;  // can do the work of all groups
    std::vector<End> ends;
    std::vector<Bucket> buckets;
    size_t n_saved = 0;

    bool is_single() const { return tangents.size() == 1; }
};

// A compiled backward: one for each set of tangents that are defined.
struct Backward {
    Mask mask;
    bool whole;  // of all nodes at once
    PyObject* callable;
    bool is_plan;
    Backward* next;
};

// Tensors that are made between the nodes, by the program's own operators: views of an output, an input that is written.
struct Taken {
    struct Operand {
        bool is_input;
        size_t index;  // of an input, or an output, where what is taken follows
    };
    size_t after;  // so many nodes
    std::vector<Operand> operands;
    PyObject* make;
    size_t first;  // of them among all that is taken
    size_t count;
};

// What all nodes of one Differentiable have in common: what it was built from, and the backwards compiled so far.
// Python objects in it are touched with the GIL only.
struct Spec : c10::intrusive_ptr_target {
    std::string name;
    PyObject* forward = nullptr;
    PyObject* compile_backward = nullptr;
    PyObject* lock = nullptr;             // held while a backward is compiled
    PyObject* double_backward = nullptr;  // differentiates by running the forward again, or null
    bool forward_is_plan = false;
    std::vector<c10::Device>
        draws;  // `double_backward` is given where their generators stood before the forward
    std::vector<c10::Device> devices;  // of a graph over several GPUs: these
    std::vector<size_t> copied;     // inputs that are written, and that `double_backward` reads as they were
    std::vector<size_t> rewritten;  // inputs whose values `double_backward` does not read
    size_t n_outputs = 0;
    size_t n_results = 0;  // outputs and saved temporaries
    size_t n_inputs = 0;   // the fewest that a call needs
    std::vector<Tangent> tangents;
    std::vector<size_t> gradients;  // positions among the inputs
    size_t n_leaves = 0;  // the first so many gradients are of leaves, in the order in which they arrive
    std::vector<size_t> through;  // positions of outputs that other outputs are computed from
    std::vector<Taken> taken;
    size_t n_taken = 0;            // count as further outputs in `through` and `tangents`
    std::vector<NodeSpec> groups;  // in the order of computation
    std::vector<Mask> conflicts;   // per tangent: with which others it shares what eager frees
    std::vector<SavedSource> saved;
    std::vector<size_t> returned_inputs;         // what a plan returns as a differentiable output
    std::atomic<Backward*> backwards = nullptr;  // only ever grows, so it is walked without a lock

    ~Spec() override;

    bool is_taken(size_t output) const { return output >= n_outputs; }

    const Backward* find(const Mask& mask, bool whole) const {
        for (const Backward* b = backwards.load(std::memory_order_acquire); b; b = b->next)
            if (b->mask == mask && b->whole == whole) return b;
        return nullptr;
    }
};

// What `Differentiable(spec)` was given, a dict. Throws python_error and what pybind11 throws.
c10::intrusive_ptr<Spec> read_spec(PyObject* dict);

// The backward for these tangents, compiled now if it has not been; `whole`: of all nodes at once. Takes the GIL.
// Throws the exception that compiling raised.
const Backward& compile_backward(Spec& spec, const Mask& mask, bool whole);

}  // namespace smelt::autograd
