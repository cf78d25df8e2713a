// CUDA graph recording and replay of plans (`mode="reduce-overhead"`).
//
// A graph replays the launches of a run at the same addresses. So for each input it either relies on its address
// (weights, outputs of an earlier graph) or has a static tensor, to which the input is copied first (inputs that came
// at changing addresses). Outputs are returned as new tensors over memory that the graph owns.
//
// Invariant: a graph is replayed only if nobody holds its last outputs, so it overwrites nothing that the user has.
// The plan itself runs if no graph can be replayed.
//
// All functions need the GIL, which also guards the data: a replay may release it, but only after its outputs are
// referenced.
#pragma once
#include <ATen/core/Tensor.h>
#include <Python.h>

#include <vector>

#include "plan/registers.h"
#include "plan/program.h"

namespace smelt::plan {

using Inputs = c10::SmallVector<const at::Tensor*, 32>;  // nullptr: not a tensor, or none

// An output in memory that the graph owns. `base`: the tensor that it is a view of, if that is visible to the user;
// else undefined.
struct Output {
    at::Tensor owned, base;
    size_t sharing = 0;  // the number of the graph's tensors with this storage
};

struct CapturedGraph {
    c10::StreamId stream;
    std::vector<const void*> addresses;     // of inputs; nullptr: any
    std::vector<at::Tensor> static_inputs;  // of inputs that are copied; undefined: others
    std::vector<Output> outputs;            // `owned` is undefined for a returned input, or for no output
    PyObject* replay;                       // a Python function without arguments
};

class CudaGraphs {
  public:
    // `capture(inputs, copied)` captures a run of the plan: (replay, static tensors, outputs), or None if it cannot.
    CudaGraphs(const Program& program, PyObject* capture);
    ~CudaGraphs();
    CudaGraphs(const CudaGraphs&) = delete;
    CudaGraphs& operator=(const CudaGraphs&) = delete;

    // Replays a graph, which may be captured first, and sets its outputs. Returns false if the plan must run. Throws
    // what Python and the driver raise.
    bool run(const Inputs& inputs, std::vector<at::Tensor>& outputs);

    void drop();

  private:
    const CapturedGraph* find(c10::StreamId stream, const Inputs& inputs) const;
    bool may_capture(const Inputs& inputs);
    bool capture(c10::StreamId stream, const Inputs& inputs);
    void replay(const CapturedGraph& graph, const Inputs& inputs, std::vector<at::Tensor>& outputs) const;

    const Program& program_;
    PyObject* capture_;                // nullptr: captures no more graphs
    const std::vector<char> written_;  // inputs that the plan writes
    std::vector<CapturedGraph> captured_;
    size_t calls_ = 0;               // calls that no graph answered
    std::vector<const void*> last_;  // addresses of inputs at the last of these calls
    std::vector<char> changes_;      // inputs whose address has changed
};

}  // namespace smelt::plan
