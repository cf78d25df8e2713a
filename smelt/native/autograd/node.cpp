#include "autograd/node.h"

#include <ATen/LegacyBatchedTensorImpl.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>

#include "autograd/errors.h"
#include "plan/plan.h"

namespace smelt::autograd {

namespace {

constexpr const char* kTwice =
    "smelt: this compiled function can be differentiated once (it writes or draws random numbers, or one of "
    "its "
    "inputs is gone or was written); use smelt.disable on it, or backend='eager', for higher derivatives";
constexpr const char* kTransformed =
    "smelt: transforms of torch.func cannot go through the backward of a compiled function; use "
    "smelt.disable on "
    "it, or backend='eager'";

bool has_any(const at::Tensor& t, std::initializer_list<c10::DispatchKey> keys) {
    return t.key_set().has_any(c10::DispatchKeySet(keys));
}

bool is_lazy(const at::Tensor& t) {
    using c10::DispatchKey;
    return has_any(t, {DispatchKey::Conjugate, DispatchKey::Negative, DispatchKey::ZeroTensor,
                       DispatchKey::Functionalize, DispatchKey::Python});
}

// A tangent as the backward was compiled for it: dense, materialized, of this layout.
at::Tensor conform(const Layout& want, at::Tensor t) {
    using c10::DispatchKey;
    TORCH_CHECK(!has_any(t, {DispatchKey::FuncTorchBatched, DispatchKey::FuncTorchGradWrapper}),
                kTransformed);
    if (t.layout() != at::kStrided) t = t.to_dense();
    TORCH_CHECK(want.describes(t), "smelt: a gradient of " + described(want.dtype, want.shape) +
                                       " is expected, got " + described(t.scalar_type(), t.sizes()));
    return !is_lazy(t) && want.has_strides_of(t) ? t : want.copy_of(t);
}

// What a hook unpacked, as the backward relies on it: hooks keep values, not where they lie.
at::Tensor restored(const Layout& want, at::Tensor t) {
    TORCH_CHECK(t.sizes() == want.shape, "smelt: the unpack hook of a saved " +
                                             described(want.dtype, want.shape) + " gave " +
                                             described(t.scalar_type(), t.sizes()));
    if (t.layout() != at::kStrided) t = t.to_dense();
    if (!is_lazy(t) && want.describes(t) && want.has_strides_of(t)) return t;
    Layout once = want;  // without the dimensions along which all elements are one place
    for (size_t d = 0; d < once.shape.size(); ++d) {
        if (once.stride[d] != 0 || once.shape[d] == 0) continue;
        once.shape[d] = 1;
        t = t.narrow(static_cast<int64_t>(d), 0, 1);
    }
    return once.copy_of(t).expand(want.shape);
}

at::Tensor as_gradient(PyObject* item) {
    if (item == Py_None) return {};
    if (!THPVariable_Check(item))
        raise(PyExc_TypeError, std::string("Differentiable: the backward returned a ") +
                                   Py_TYPE(item)->tp_name + " for a gradient");
    return THPVariable_Unpack(item);
}

variable_list gradients_in(THPObjectPtr& result, size_t n_gradients) {
    result = checked(PySequence_Fast(result, "Differentiable: the backward must return a sequence"));
    const auto n = static_cast<size_t>(PySequence_Fast_GET_SIZE(result.get()));
    if (n != n_gradients)
        raise(PyExc_RuntimeError, "Differentiable: the backward returned " + std::to_string(n) +
                                      " gradients, " + std::to_string(n_gradients) + " are expected");
    variable_list gradients;
    gradients.reserve(n);
    for (size_t i = 0; i < n; ++i)
        gradients.push_back(as_gradient(PySequence_Fast_GET_ITEM(result.get(), static_cast<Py_ssize_t>(i))));
    return gradients;
}

// `numbers[i]`: argument i stands for a Python number.
variable_list call_backward(PyObject* callable, variable_list&& arguments, const std::vector<bool>& numbers,
                            size_t n_gradients) {
    pybind11::gil_scoped_acquire gil;
    THPObjectPtr tuple(checked(PyTuple_New(static_cast<Py_ssize_t>(arguments.size()))));
    for (size_t i = 0; i < arguments.size(); ++i) {
        const at::Tensor& t = arguments[i];
        PyObject* item = !numbers[i]                      ? THPVariable_Wrap(t)
                         : t.scalar_type() == at::kDouble ? PyFloat_FromDouble(*t.const_data_ptr<double>())
                                                          : PyLong_FromLongLong(*t.const_data_ptr<int64_t>());
        PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), checked(item));
    }
    arguments.clear();
    THPObjectPtr result;
    {
        c10::impl::ForceDispatchKeyGuard guard(below_autograd(c10::impl::tls_local_dispatch_key_set()));
        result = checked(PyObject_CallOneArg(callable, tuple));
    }
    tuple = nullptr;
    return gradients_in(result, n_gradients);
}

}  // namespace

void CompiledBackward::release_variables() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!partly_released_) release();
    partly_released_ = false;
}

variable_list CompiledBackward::apply(variable_list&& tangents) {
    Mask mask(spec_->tangents.size());
    for (size_t i = 0; i < group_.tangents.size(); ++i)
        mask[group_.tangents[i]] = i < tangents.size() && tangents[i].defined();
    if (count_defined(mask) == 0) return variable_list(num_outputs());
    if (c10::GradMode::is_enabled() && spec_->double_backward) {
        variable_list primals;
        if (lock_primals(primals)) return run_double_backward(primals, tangents);
    }
    const bool whole = group_.whole && is_unobserved();
    const Backward* backward = spec_->find(mask, whole);
    if (!backward) backward = &compile_backward(*spec_, mask, whole);
    variable_list arguments = unpack(mask, whole);
    for (at::Tensor& t : tangents)
        if (t.defined()) arguments.push_back(std::move(t));
    tangents.clear();
    const bool batched = std::any_of(arguments.begin(), arguments.end(), at::isBatchedTensor);
    if (!batched) conform_tangents(mask, arguments);
    variable_list kept;
    if (c10::GradMode::is_enabled()) kept = arguments;  // create_graph=True
    variable_list gradients =
        batched ? run_batch(*backward, mask, arguments) : run(*backward, std::move(arguments));
    if (!kept.empty()) forbid_second(kept, gradients);
    return gradients;
}

bool CompiledBackward::is_read(const SavedSource& source, const Mask& mask) {
    for (size_t k = 0; k < source.readers.size(); ++k)
        if (source.readers[k] && mask[k]) return true;
    return source.readers.empty();
}

variable_list CompiledBackward::unpack(const Mask& mask, bool whole) {
    const bool keep = torch::autograd::get_current_graph_task_keep_graph();
    variable_list values;
    values.reserve(saved_.size() + spec_->tangents.size());
    std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < saved_.size(); ++i) {
        SavedValue& s = saved_[i];
        if (s.number.defined()) {
            values.push_back(s.number);
        } else if (!whole && !is_read(spec_->saved[i], mask)) {
            values.emplace_back();
            partly_released_ |= !keep && s.is_held;
        } else {
            at::Tensor value = s.variable.unpack(s.is_output ? getptr() : NodePtr());
            values.push_back(s.layout ? restored(*s.layout, std::move(value)) : std::move(value));
        }
    }
    if (keep) return values;
    for (size_t i = 0; i < saved_.size(); ++i)
        if (whole || is_read(spec_->saved[i], mask)) saved_[i].variable.reset_data();
    return values;
}

bool CompiledBackward::is_unobserved() const {
    if (torch::autograd::get_current_graph_task_id() < 0) return false;
    const auto* exec_info = torch::autograd::get_current_graph_task_exec_info();
    for (size_t k = spec_->gradients.size(); k < num_outputs(); ++k) {
        const auto node = next_edge(k).function;
        if (!node) continue;
        if (!node->tensor_pre_hooks().empty() || !node->retains_grad_hooks().empty() ||
            !node->pre_hooks().empty() || !node->post_hooks().empty())
            return false;
        const auto found = exec_info->find(node.get());
        if (found != exec_info->end() && found->second.captures_) return false;
    }
    return true;
}

bool CompiledBackward::lock_primals(variable_list& primals) const {
    for (const Primal& p : primals_) {
        primals.emplace_back(p.impl.lock());
        if (!primals.back().defined() || version_of(primals.back()) != p.version) return false;
    }
    return true;
}

variable_list CompiledBackward::run_double_backward(const variable_list& primals,
                                                    const variable_list& tangents) const {
    pybind11::gil_scoped_acquire gil;
    auto pack = [](const variable_list& list) {
        THPObjectPtr tuple(checked(PyTuple_New(static_cast<Py_ssize_t>(list.size()))));
        for (size_t i = 0; i < list.size(); ++i)
            PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), checked(THPVariable_Wrap(list[i])));
        return tuple;
    };
    const THPObjectPtr first = pack(primals), second = pack(tangents);  // there is one group
    THPObjectPtr result(
        checked(PyObject_CallFunctionObjArgs(spec_->double_backward, first.get(), second.get(), nullptr)));
    return gradients_in(result, num_outputs());
}

void CompiledBackward::conform_tangents(const Mask& mask, variable_list& arguments) const {
    size_t at = saved_.size();
    for (size_t i = 0; i < mask.size(); ++i) {
        if (!mask[i]) continue;
        arguments[at] = conform(spec_->tangents[i].layout, std::move(arguments[at]));
        ++at;
    }
}

variable_list CompiledBackward::run_batch(const Backward& backward, const Mask& mask,
                                          const variable_list& arguments) {
    int64_t level = 0, size = 0;
    for (const at::Tensor& t : arguments) {
        const auto* batch = at::maybeGetBatchedImpl(t);
        if (!batch) continue;
        TORCH_CHECK(batch->bdims().size() == 1, kTransformed);
        level = batch->bdims()[0].level();
        size = batch->value().size(batch->bdims()[0].dim());
    }
    std::vector<variable_list> samples(num_outputs());
    for (int64_t i = 0; i < size; ++i) {
        variable_list sample = arguments;
        for (at::Tensor& t : sample)
            if (const auto* batch = at::maybeGetBatchedImpl(t))
                t = batch->value().select(batch->bdims()[0].dim(), i);
        conform_tangents(mask, sample);
        const variable_list gradients = run(backward, std::move(sample));
        for (size_t k = 0; k < gradients.size(); ++k)
            if (gradients[k].defined()) samples[k].push_back(gradients[k]);
    }
    variable_list gradients(num_outputs());
    for (size_t k = 0; k < gradients.size(); ++k)
        if (!samples[k].empty()) gradients[k] = at::addBatchDim(at::stack(samples[k]), level, 0);
    return gradients;
}

variable_list CompiledBackward::run(const Backward& backward, variable_list&& arguments) {
    c10::AutoGradMode no_grad(false);
    if (backward.is_plan) return run_plan(backward.callable, std::move(arguments));
    std::vector<bool> numbers(arguments.size());
    for (size_t i = 0; i < saved_.size(); ++i) numbers[i] = saved_[i].number.defined();
    return call_backward(backward.callable, std::move(arguments), numbers, num_outputs());
}

void CompiledBackward::forbid_second(const variable_list& arguments, variable_list& gradients) const {
    edge_list edges = next_edges();
    bool depends = false;
    for (size_t i = 0; i < arguments.size(); ++i) {
        const at::Tensor& t = arguments[i];
        const bool tangent = i >= saved_.size();
        if (tangent && t.requires_grad()) edges.push_back(torch::autograd::impl::gradient_edge(t));
        const bool temporary = !tangent && spec_->saved[i].kind == SavedSource::Kind::temporary;
        depends |= t.requires_grad() || (temporary && torch::autograd::isDifferentiableType(t.scalar_type()));
    }
    if (!depends) return;
    const auto error = make_node<torch::autograd::Error>(std::string(kTwice), std::move(edges));
    for (at::Tensor& g : gradients) {
        if (!g.defined() || !torch::autograd::isDifferentiableType(g.scalar_type())) continue;
        if (is_tangent(arguments, g)) continue;
        if (g.use_count() > 1 || g.requires_grad()) g = g.detach();
        torch::autograd::set_history(g, error);
    }
}

bool CompiledBackward::is_tangent(const variable_list& arguments, const at::Tensor& t) const {
    for (size_t i = saved_.size(); i < arguments.size(); ++i)
        if (arguments[i].is_same(t)) return true;
    return false;
}

}  // namespace smelt::autograd
