// Runs of a plan that are kept as CUDA graphs (`mode="reduce-overhead"`).
//
// A graph replays what a run launched, at the same addresses. So for each input it either relies on its address (weights, what
// an earlier graph gave) or has a place of its own, to which the input is copied first (what came at another address before).
// Its results lie where they lay: they are given out as tensors of their own over memory that the graph keeps. What always
// holds: a graph is replayed only if nobody holds what it gave last, so nothing that the user has is overwritten; the plan
// itself runs where none can be replayed.
//
// All functions need the GIL, which is also what guards the data: replaying may let go of it, but by then its results are held.
#pragma once
#include <ATen/core/Tensor.h>
#include <Python.h>

#include <vector>

#include "plan/frame.h"
#include "plan/program.h"

namespace smelt::plan {

using Inputs = c10::SmallVector<const at::Tensor*, 32>;  // nullptr: not a tensor, or none

// What a graph gives at one place: memory that it keeps. `base`: of which it is a view, as the user may see; undefined: it is none.
struct Output {
    at::Tensor kept, base;
    size_t sharing = 0;  // tensors of the graph that have its storage
};

struct Captured {
    c10::StreamId stream;
    std::vector<const void*> addresses;  // of inputs; nullptr: any
    std::vector<at::Tensor> places;      // of inputs that are copied; undefined: they are not
    std::vector<Output> outputs;         // `kept` is undefined where an input is returned, or nothing
    PyObject* replay;                    // a Python function without arguments
};

class Graphs {
  public:
    // `capture(inputs, copied)` runs the plan for a graph: (replay, places, outputs), or None if it cannot.
    Graphs(const Program& program, PyObject* capture);
    ~Graphs();
    Graphs(const Graphs&) = delete;
    Graphs& operator=(const Graphs&) = delete;

    // Runs a graph, captured first where it is time, and gives its outputs. False: the plan is to run. Throws what Python and
    // the driver raise.
    bool run(const Inputs& inputs, std::vector<at::Tensor>& outputs);

    void drop();

  private:
    const Captured* find(c10::StreamId stream, const Inputs& inputs) const;
    bool may_capture(const Inputs& inputs);
    bool capture(c10::StreamId stream, const Inputs& inputs);
    void replay(const Captured& graph, const Inputs& inputs, std::vector<at::Tensor>& outputs) const;

    const Program& program_;
    PyObject* capture_;                // nullptr: no more graphs
    const std::vector<char> written_;  // inputs that the plan writes
    std::vector<Captured> captured_;
    size_t calls_ = 0;               // that no graph answered
    std::vector<const void*> last_;  // addresses of inputs at the last of them
    std::vector<char> changes_;      // inputs whose address was another one before
};

}  // namespace smelt::plan
