// CUDA graph recording and replay of plans (`mode="reduce-overhead"`).
//
// A graph replays the launches of a run at the same addresses. So for each input it either relies on its address
// (weights, outputs of an earlier graph) or has a static tensor, to which the input is copied first (inputs that came
// at changing addresses). Outputs are returned as new tensors over memory that the graph owns.
//
// Invariant: a graph is replayed only if nobody holds its last outputs, so it overwrites nothing that the user has.
// The plan itself runs if no graph can be replayed.
//
// The caller holds a lock (the GIL) during each call, which guards the data: a replay may release it, but only after its
// outputs are referenced.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <functional>
#include <optional>
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
    std::function<void()> replay;
};

// A captured run: what replays it, the static tensors of the inputs that are copied, and the results.
struct Capture {
    std::function<void()> replay;
    std::vector<at::Tensor> static_inputs, results;
};
// `capture(inputs, copied)` captures a run of the plan; nothing if it cannot.
using CaptureRun =
    std::function<std::optional<Capture>(const Inputs& inputs, const std::vector<char>& copied)>;

class CudaGraphs {
  public:
    CudaGraphs(const Program& program, CaptureRun capture);
    CudaGraphs(const CudaGraphs&) = delete;
    CudaGraphs& operator=(const CudaGraphs&) = delete;

    // Replays a graph, which may be captured first, and sets its outputs. Returns false if the plan must run. Throws
    // what the capture, the replay and the driver throw.
    bool run(const Inputs& inputs, std::vector<at::Tensor>& outputs);

    void drop();

  private:
    const CapturedGraph* find(c10::StreamId stream, const Inputs& inputs) const;
    bool may_capture(const Inputs& inputs);
    bool capture(c10::StreamId stream, const Inputs& inputs);
    void replay(const CapturedGraph& graph, const Inputs& inputs, std::vector<at::Tensor>& outputs) const;

    const Program& program_;
    CaptureRun capture_;               // empty: captures no more graphs
    const std::vector<char> written_;  // inputs that the plan writes
    std::vector<CapturedGraph> captured_;
    size_t calls_ = 0;               // calls that no graph answered
    std::vector<const void*> last_;  // addresses of inputs at the last of these calls
    std::vector<char> changes_;      // inputs whose address has changed
};

}  // namespace smelt::plan
