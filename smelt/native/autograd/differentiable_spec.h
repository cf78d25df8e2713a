// The specification of a Differentiable, and the backwards compiled for it.
#pragma once
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <Python.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tensor_layout.h"

namespace smelt::autograd {

using Mask = c10::SmallVector<char, 16>;  // per tangent: defined

size_t count_defined(const Mask& mask);
bool intersect(const Mask& a, const Mask& b);

struct Tangent {
    size_t output;  // index among the forward's outputs
    Layout layout;  // the layout that the backward relies on
};

// The source of a saved value.
struct SavedSource {
    enum class Kind : uint8_t { primal, alias, output, temporary } kind;
    size_t index;
    Mask readers;                     // the tangents whose gradients read it; empty: all
    std::optional<Layout> layout;     // of a primal that the program may give other data
    std::optional<size_t> primal;     // of an alias: the saved value that is the primal itself, if any
    bool is_recomputed_from = false;  // of an alias: values that eager saves are computed from it again
    // Of an output to whose `data` the program assigns: what eager's nodes read.
    enum class Data : uint8_t { old, new_data, mixed } data = Data::old;
};

// Gradients that the same tangents of a group contribute to, as indices: inputs first, then the outputs in `through`.
struct End {
    Mask tangents;
    std::vector<size_t> edges;
};

// Saved values that the same tangents of a group read.
struct Bucket {
    Mask readers;
    std::vector<size_t> saved;
    size_t first;  // index of its first value among the group's saved values
};

// Outputs with a common backward.
struct NodeSpec {
    std::vector<size_t> tangents;
    bool whole = false;         // can compute the backward of the groups before it, too
    bool ends_at_last = false;  // can do so for all but the one before it
    std::vector<End> ends;
    std::vector<Bucket> buckets;
    size_t n_saved = 0;

    bool is_single() const { return tangents.size() == 1; }
};

// How far a backward computes: to the outputs in `through` that come first; past all of them but that of the last group of
// one output; past all of them.
enum class Reach : uint8_t { segment, to_last, whole };

// A compiled backward for one set of defined tangents.
struct Backward {
    Mask mask;
    Reach reach;
    std::vector<bool> requested;  // per gradient; empty: all
    bool deterministic;           // compiled while deterministic algorithms were requested
    PyObject* callable;
    bool is_plan;
    Backward* next;
};

// Tensors that operators of the program create between the nodes (the mutation and view epilogue): views of an
// output, an input that is modified in place.
struct EpilogueStep {
    struct Operand {
        bool is_input;
        size_t index;  // of an input, or of an output; the epilogue's tensors follow the outputs
    };
    size_t after;  // how many nodes precede it
    std::vector<Operand> operands;
    PyObject* make;
    size_t first;  // index of its first tensor among the epilogue's
    size_t count;
};

// State shared by all nodes of one Differentiable: the specification, and the backwards compiled so far. Its Python
// objects are only used with the GIL held.
struct Spec : c10::intrusive_ptr_target {
    inline static std::atomic<uint64_t> count = 0;

    const uint64_t serial = count++;  // identifies the specification in this process
    std::string name;
    PyObject* forward = nullptr;
    PyObject* compile_backward = nullptr;
    PyObject* lock = nullptr;             // held while a backward is compiled
    PyObject* double_backward = nullptr;  // differentiates by running the forward again; null: none
    PyObject* substitute = nullptr;       // for a saved value that no requested gradient needs; null: none
    bool forward_is_plan = false;
    std::vector<c10::Device>
        draws;  // devices whose generator states before the forward `double_backward` gets
    std::vector<c10::Device> devices;  // of a graph over several GPUs
    std::vector<size_t>
        copied;  // inputs that are modified in place, and that `double_backward` reads as they were before
    std::vector<size_t> rewritten;               // inputs whose values `double_backward` does not read
    std::vector<std::optional<Layout>> layouts;  // of the inputs, as `double_backward` reads them
    size_t n_outputs = 0;
    size_t n_results = 0;  // outputs and saved temporaries
    size_t n_inputs = 0;   // the minimum of a call
    std::vector<Tangent> tangents;
    std::vector<size_t> gradients;  // indices of inputs
    size_t n_leaves = 0;  // so many gradients, the first, are of leaves, in the order in which they arrive
    std::vector<size_t> through;  // indices of outputs that other outputs are computed from
    std::vector<EpilogueStep> taken;
    size_t n_epilogue = 0;         // numbered after the outputs in `through` and `tangents`
    std::vector<NodeSpec> groups;  // in the order of computation
    std::vector<Mask> direct;      // per gradient: the tangents that contribute not only by a cut
    std::vector<Mask> conflicts;   // per tangent: with which others it shares what eager frees
    std::vector<SavedSource> saved;
    std::vector<size_t> returned_inputs;         // what a plan returns as a differentiable output
    std::atomic<Backward*> backwards = nullptr;  // only ever grows, so it is walked without a lock

    // The gradients that were requested of backwards, where not all were, and how often.
    struct Request {
        Mask mask;
        Reach reach;
        std::vector<bool> requested;
        size_t times;
    };
    std::vector<Request> requests;
    std::mutex requests_mutex;

    ~Spec() override;

    bool is_epilogue_output(size_t output) const { return output >= n_outputs; }

    // Kernels for requested deterministic algorithms differ, and the request may be newer than the forward.
    const Backward* find(const Mask& mask, Reach reach, const std::vector<bool>& requested = {}) const {
        const bool deterministic = at::globalContext().deterministicAlgorithms();
        for (const Backward* b = backwards.load(std::memory_order_acquire); b; b = b->next)
            if (b->mask == mask && b->reach == reach && b->deterministic == deterministic &&
                b->requested == requested)
                return b;
        return nullptr;
    }

    // Whether a backward of only these gradients is worth compiling: they are requested for the second time, and are not
    // one of too many sets.
    bool is_requested_again(const Mask& mask, Reach reach, const std::vector<bool>& requested) {
        constexpr size_t kMaxRequests = 8;
        const std::lock_guard<std::mutex> lock(requests_mutex);
        for (Request& r : requests)
            if (r.mask == mask && r.reach == reach && r.requested == requested) return ++r.times > 1;
        if (requests.size() < kMaxRequests) requests.push_back({mask, reach, requested, 1});
        return false;
    }
};

// Reads the dict that `Differentiable(spec)` got. Throws python_error and what pybind11 throws.
c10::intrusive_ptr<Spec> read_spec(PyObject* dict);

// The backward for these tangents, compiled now if necessary. Acquires the GIL.
// Throws the exception that the compilation raised.
const Backward& compile_backward(Spec& spec, const Mask& mask, Reach reach,
                                 const std::vector<bool>& requested);

}  // namespace smelt::autograd
