// The specification of a compiled graph with its backward, and the backwards compiled for it.
#pragma once
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tensor_layout.h"
#include "torch_autograd.h"

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
    Backward(Mask mask, Reach reach, std::vector<bool> requested)
        : mask(std::move(mask)), reach(reach), requested(std::move(requested)) {}
    virtual ~Backward() = default;
    Backward(const Backward&) = delete;
    Backward& operator=(const Backward&) = delete;

    // From (*saved, *defined tangents) to the gradients, below autograd. `numbers[i]`: argument i is a number.
    virtual variable_list run(variable_list&& arguments, const std::vector<bool>& numbers) const = 0;

    const Mask mask;
    const Reach reach;
    const std::vector<bool> requested;  // per gradient; empty: all
    // Kernels for requested deterministic algorithms differ, and the request may be newer than the forward.
    bool deterministic = at::globalContext().deterministicAlgorithms();
    Backward* next = nullptr;
};

struct DoubleBackwardInputs;

// Tensors that operators of the program create between the nodes (the mutation and view epilogue): views of an
// output, an input that is modified in place.
struct EpilogueStep {
    struct Operand {
        bool is_input;
        size_t index;  // of an input, or of an output; the epilogue's tensors follow the outputs
    };
    size_t after;  // how many nodes precede it
    std::vector<Operand> operands;
    size_t first;  // index of its first tensor among the epilogue's
    size_t count;
};

// State shared by all nodes of a graph: the specification, and the backwards compiled so far. Who compiles and runs them is
// up to the subclass: a Differentiable (differentiable/) or an exported program (exported/program_gradients.h).
struct Spec : c10::intrusive_ptr_target {
    inline static std::atomic<uint64_t> count = 0;

    const uint64_t serial = count++;  // identifies the specification in this process
    std::string name;
    bool has_double_backward = false;  // differentiates by running the forward again
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
    // Per gradient of an input, the output (a bool) that decides whether it is defined; nullopt: it always is. Empty: all are.
    std::vector<std::optional<size_t>> conditions;
    size_t n_leaves = 0;  // so many gradients, the first, are of leaves, in the order in which they arrive
    std::vector<size_t> through;  // indices of outputs that other outputs are computed from
    std::vector<EpilogueStep> taken;
    size_t n_epilogue = 0;         // numbered after the outputs in `through` and `tangents`
    std::vector<NodeSpec> groups;  // in the order of computation
    std::vector<Mask> direct;      // per gradient: the tangents that contribute not only by a cut
    std::vector<Mask> conflicts;   // per tangent: with which others it shares what eager frees
    std::vector<SavedSource> saved;
    // The inputs that the forward returns as differentiable outputs; nullopt: known only after a call.
    std::optional<std::vector<size_t>> returned_inputs;
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

    ~Spec() override { delete_backwards(); }

    // The backward for these tangents, compiled now if necessary. Throws what the compilation raised.
    virtual const Backward& compile_backward(const Mask& mask, Reach reach,
                                             const std::vector<bool>& requested) = 0;

    // For create_graph=True: the gradients with a history, then per tangent its output in the recomputed forward.
    virtual variable_list differentiate_again(const DoubleBackwardInputs& inputs,
                                              const variable_list& primals, const variable_list& through,
                                              const variable_list& tangents) const;

    // For saved value `i`, if none of the requested gradients needs it; else undefined.
    virtual at::Tensor substitute(size_t i, const std::vector<bool>& requested) const;

    // The plain tensor that a tensor subclass with operators of its own stands for; `t` where it stands for none.
    virtual at::Tensor converted(at::Tensor t) const { return t; }

    void delete_backwards();

    // Adds a saved value, and to an alias the primal before it. `n_outputs` and `n_results` are set.
    void add_saved(SavedSource source);

    // Adds a group. `contributors`: per gradient. `tangents`, `conflicts`, `saved` and `n_leaves` are set.
    void add_group(NodeSpec group, const std::vector<Mask>& contributors);

    // Checks a new backward's numbers of inputs and outputs.
    bool fits(const Mask& mask, size_t inputs, size_t outputs) const {
        return inputs == saved.size() + count_defined(mask) && outputs == n_gradients();
    }

    // Adds a backward to those that `find` finds. One thread at a time.
    const Backward& add(std::unique_ptr<Backward> made) {
        made->next = backwards.load();
        backwards.store(made.get(), std::memory_order_release);
        return *made.release();
    }

    size_t n_gradients() const { return gradients.size() + through.size(); }

    bool is_epilogue_output(size_t output) const { return output >= n_outputs; }

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

}  // namespace smelt::autograd
