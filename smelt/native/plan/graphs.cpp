#include "plan/graphs.h"

#include <unordered_map>

#include "devices/driver.h"
#include "torch.h"
#include "torch_python.h"

namespace smelt::plan {
namespace {

constexpr size_t kRunsBefore = 2;  // libraries choose and load what they need; addresses that change show
constexpr size_t kMost = 8;        // graphs of a plan: beyond, addresses change all the time

const void* address(const at::Tensor* t) {
    return t ? t->unsafeGetTensorImpl()->data() : nullptr;
}

// A tensor over the memory of `kept`, which whoever gets it may change and view as his own.
at::Tensor handed_out(const at::Tensor& kept) {
    auto t = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(kept.storage()),
                                                      kept.key_set(), kept.dtype());
    t.unsafeGetTensorImpl()->set_sizes_and_strides(kept.sizes(), kept.strides(), kept.storage_offset());
    return t;
}

bool is_held(const Captured& graph) {
    for (const Output& o : graph.outputs)
        if (o.kept.defined() && o.kept.storage().use_count() > o.sharing) return true;
    return false;
}

std::vector<at::Tensor> tensors(const py::handle& items) {
    std::vector<at::Tensor> found;
    for (py::handle item : py::reinterpret_borrow<py::tuple>(items))
        found.push_back(item.is_none() ? at::Tensor() : THPVariable_Unpack(item.ptr()));
    return found;
}

// Whether one is a view of an input: it would have to be one of this call's input.
bool views_input(const std::vector<at::Tensor>& given, const Inputs& inputs, const Program& program) {
    for (size_t i = 0; i < given.size(); ++i) {
        if (!given[i].defined() || program.is_input(program.outputs[i])) continue;
        for (const at::Tensor* input : inputs)
            if (input && input->storage().is_alias_of(given[i].storage())) return true;
    }
    return false;
}

// What a run gave, as the graph keeps it: tensors of its own.
std::vector<Output> kept(const std::vector<at::Tensor>& given, const Program& program) {
    std::vector<Output> outputs(given.size());
    std::unordered_map<const void*, at::Tensor> bases;
    std::unordered_map<const void*, size_t> sharing;
    auto storage = [](const at::Tensor& t) { return t.storage().unsafeGetStorageImpl(); };
    for (size_t i = 0; i < given.size(); ++i) {
        if (!given[i].defined() || program.is_input(program.outputs[i])) continue;
        outputs[i].kept = handed_out(given[i]);
        ++sharing[storage(given[i])];
        if (!given[i].is_view()) continue;
        const at::Tensor whole(given[i]._base());
        at::Tensor& base = bases[whole.unsafeGetTensorImpl()];
        if (!base.defined()) {
            base = handed_out(whole);
            ++sharing[storage(base)];
        }
        outputs[i].base = base;
    }
    for (Output& o : outputs)
        if (o.kept.defined()) o.sharing = sharing[storage(o.kept)];
    return outputs;
}

}  // namespace

Graphs::Graphs(const Program& program, PyObject* capture)
    : program_(program),
      capture_(Py_NewRef(capture)),
      written_(written_inputs(program)),
      last_(program.n_inputs, nullptr),
      changes_(program.n_inputs, 0) {}

Graphs::~Graphs() {
    drop();
    Py_XDECREF(capture_);
}

void Graphs::drop() {
    auto dropped = std::move(captured_);
    captured_.clear();
    for (Captured& graph : dropped) Py_XDECREF(graph.replay);
}

bool Graphs::run(const Inputs& inputs, std::vector<at::Tensor>& outputs) {
    const Place place = place_on(program_.device);
    if (devices::is_captured(place.handle)) return false;  // by the user, or by a graph of this plan
    const Captured* found = find(place.stream, inputs);
    if (!found) {
        if (!may_capture(inputs) || !capture(place.stream, inputs)) return false;
        found = &captured_.back();
    }
    if (is_held(*found)) return false;
    replay(*found, inputs, outputs);
    return true;
}

const Captured* Graphs::find(c10::StreamId stream, const Inputs& inputs) const {
    for (const Captured& graph : captured_) {
        bool fits = graph.stream == stream;
        for (size_t i = 0; fits && i < inputs.size(); ++i)
            fits = !graph.addresses[i] || graph.addresses[i] == address(inputs[i]);
        if (fits) return &graph;
    }
    return nullptr;
}

// Notes which addresses change. What the plan writes is written where it is, so it must have come here before.
bool Graphs::may_capture(const Inputs& inputs) {
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
    return ++calls_ > kRunsBefore && settled && capture_ && captured_.size() < kMost;
}

bool Graphs::capture(c10::StreamId stream, const Inputs& inputs) {
    py::tuple given(inputs.size()), copied(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
        given[i] = inputs[i] ? py::reinterpret_steal<py::object>(THPVariable_Wrap(*inputs[i])) : py::none();
        copied[i] = py::bool_(changes_[i] != 0);
    }
    const auto made = py::reinterpret_steal<py::object>(
        PyObject_CallFunctionObjArgs(capture_, given.ptr(), copied.ptr(), nullptr));
    if (!made) throw python_error();
    if (made.is_none()) {
        Py_CLEAR(capture_);
        return false;
    }
    const py::tuple parts = made;
    if (views_input(tensors(parts[2]), inputs, program_)) {
        Py_CLEAR(capture_);
        return false;
    }
    Captured graph{stream, last_, tensors(parts[1]), kept(tensors(parts[2]), program_),
                   Py_NewRef(PyTuple_GET_ITEM(made.ptr(), 0))};
    for (size_t i = 0; i < inputs.size(); ++i)
        if (!program_.is_read[i] || changes_[i]) graph.addresses[i] = nullptr;
    captured_.push_back(std::move(graph));
    return true;
}

void Graphs::replay(const Captured& graph, const Inputs& inputs, std::vector<at::Tensor>& outputs) const {
    {
        const BelowAutograd beneath;
        for (size_t i = 0; i < inputs.size(); ++i)
            if (graph.places[i].defined()) graph.places[i].copy_(*inputs[i], /*non_blocking=*/true);
    }
    outputs.assign(graph.outputs.size(), at::Tensor());
    std::unordered_map<const void*, at::Tensor> bases;
    for (size_t i = 0; i < outputs.size(); ++i) {
        const auto& [kept, base, sharing] = graph.outputs[i];
        if (!kept.defined()) continue;
        if (!base.defined()) {
            outputs[i] = handed_out(kept);
            continue;
        }
        at::Tensor& of_this_call = bases[base.unsafeGetTensorImpl()];
        if (!of_this_call.defined()) of_this_call = handed_out(base);
        outputs[i] = of_this_call.as_strided(kept.sizes(), kept.strides(), kept.storage_offset());
    }
    for (size_t i = 0; i < inputs.size(); ++i)
        if (written_[i]) inputs[i]->unsafeGetTensorImpl()->bump_version();
    PyObject* done = PyObject_CallNoArgs(graph.replay);
    if (!done) throw python_error();
    Py_DECREF(done);
}

}  // namespace smelt::plan
