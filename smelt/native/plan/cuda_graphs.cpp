#include "plan/cuda_graphs.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "devices/gpu_driver.h"
#include "torch.h"

namespace smelt::plan {
namespace {

constexpr size_t kWarmupRuns = 2;  // libraries select and load kernels; changing addresses show
constexpr size_t kMaxGraphs = 8;   // graphs per plan: with more, addresses change all the time

const void* address(const at::Tensor* t) {
    return t ? t->unsafeGetTensorImpl()->data() : nullptr;
}

// A tensor over the memory of `owned`, whose metadata the user may change.
at::Tensor alias_of(const at::Tensor& owned) {
    auto t = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(owned.storage()),
                                                      owned.key_set(), owned.dtype());
    t.unsafeGetTensorImpl()->set_sizes_and_strides(owned.sizes(), owned.strides(), owned.storage_offset());
    return t;
}

bool outputs_in_use(const CapturedGraph& graph) {
    for (const Output& o : graph.outputs)
        if (o.owned.defined() && o.owned.storage().use_count() > o.sharing) return true;
    return false;
}

// Whether an output is a view of an input: then it would have to be a view of this call's input.
bool views_input(const std::vector<at::Tensor>& outputs, const Inputs& inputs, const Program& program) {
    for (size_t i = 0; i < outputs.size(); ++i) {
        if (!outputs[i].defined() || program.is_input(program.outputs[i])) continue;
        for (const at::Tensor* input : inputs)
            if (input && input->storage().is_alias_of(outputs[i].storage())) return true;
    }
    return false;
}

// The outputs of a run as tensors that the graph owns.
std::vector<Output> owned_outputs(const std::vector<at::Tensor>& results, const Program& program) {
    std::vector<Output> outputs(results.size());
    std::unordered_map<const void*, at::Tensor> bases;
    std::unordered_map<const void*, size_t> sharing;
    auto storage = [](const at::Tensor& t) { return t.storage().unsafeGetStorageImpl(); };
    for (size_t i = 0; i < results.size(); ++i) {
        if (!results[i].defined() || program.is_input(program.outputs[i])) continue;
        outputs[i].owned = alias_of(results[i]);
        ++sharing[storage(results[i])];
        if (!results[i].is_view()) continue;
        const at::Tensor whole(results[i]._base());
        at::Tensor& base = bases[whole.unsafeGetTensorImpl()];
        if (!base.defined()) {
            base = alias_of(whole);
            ++sharing[storage(base)];
        }
        outputs[i].base = base;
    }
    for (Output& o : outputs)
        if (o.owned.defined()) o.sharing = sharing[storage(o.owned)];
    return outputs;
}

}  // namespace

CudaGraphs::CudaGraphs(const Program& program, CaptureRun capture)
    : program_(program),
      capture_(std::move(capture)),
      written_(written_inputs(program)),
      last_(program.n_inputs, nullptr),
      changes_(program.n_inputs, 0) {}

void CudaGraphs::drop() {
    const auto dropped = std::exchange(captured_, {});
}

bool CudaGraphs::run(const Inputs& inputs, std::vector<at::Tensor>& outputs) {
    const StreamKey stream = current_stream_of(program_.device);
    const int device = std::max<int>(program_.device.index(), 0);
    // By the user, or by a graph of this plan.
    if (devices::is_captured(device, stream.handle)) return false;
    const CapturedGraph* found = find(stream.stream, inputs);
    if (!found) {
        if (!may_capture(inputs) || !capture(stream.stream, inputs)) return false;
        found = &captured_.back();
    }
    if (outputs_in_use(*found)) return false;
    replay(*found, inputs, outputs);
    return true;
}

const CapturedGraph* CudaGraphs::find(c10::StreamId stream, const Inputs& inputs) const {
    for (const CapturedGraph& graph : captured_) {
        bool fits = graph.stream == stream;
        for (size_t i = 0; fits && i < inputs.size(); ++i)
            fits = !graph.addresses[i] || graph.addresses[i] == address(inputs[i]);
        if (fits) return &graph;
    }
    return nullptr;
}

// Records which addresses change. An input that the plan writes is written in stream, so its address must be stable
// before the capture.
bool CudaGraphs::may_capture(const Inputs& inputs) {
    bool settled = true;
    for (size_t i = 0; i < inputs.size(); ++i) {
        if (!program_.is_read[i]) continue;
        const void* at = address(inputs[i]);
        if (calls_ && last_[i] != at) {
            if (written_[i])
                settled = false;
            else
                changes_[i] = 1;
        }
        last_[i] = at;
    }
    return ++calls_ > kWarmupRuns && settled && capture_ && captured_.size() < kMaxGraphs;
}

bool CudaGraphs::capture(c10::StreamId stream, const Inputs& inputs) {
    std::optional<Capture> made = capture_(inputs, changes_);
    if (!made || views_input(made->results, inputs, program_)) {
        capture_ = nullptr;
        return false;
    }
    CapturedGraph graph{stream, last_, std::move(made->static_inputs), owned_outputs(made->results, program_),
                        std::move(made->replay)};
    for (size_t i = 0; i < inputs.size(); ++i)
        if (!program_.is_read[i] || changes_[i]) graph.addresses[i] = nullptr;
    captured_.push_back(std::move(graph));
    return true;
}

void CudaGraphs::replay(const CapturedGraph& graph, const Inputs& inputs,
                        std::vector<at::Tensor>& outputs) const {
    {
        const BelowAutograd beneath;
        for (size_t i = 0; i < inputs.size(); ++i)
            if (graph.static_inputs[i].defined())
                graph.static_inputs[i].copy_(*inputs[i], /*non_blocking=*/true);
    }
    outputs.assign(graph.outputs.size(), at::Tensor());
    std::unordered_map<const void*, at::Tensor> bases;
    for (size_t i = 0; i < outputs.size(); ++i) {
        const auto& [owned, base, sharing] = graph.outputs[i];
        if (!owned.defined()) continue;
        if (!base.defined()) {
            outputs[i] = alias_of(owned);
            continue;
        }
        at::Tensor& of_this_call = bases[base.unsafeGetTensorImpl()];
        if (!of_this_call.defined()) of_this_call = alias_of(base);
        outputs[i] = of_this_call.as_strided(owned.sizes(), owned.strides(), owned.storage_offset());
    }
    for (size_t i = 0; i < inputs.size(); ++i)
        if (written_[i]) inputs[i]->unsafeGetTensorImpl()->bump_version();
    graph.replay();
}

}  // namespace smelt::plan
