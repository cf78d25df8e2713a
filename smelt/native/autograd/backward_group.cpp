#include "autograd/backward_group.h"

#include <ATen/ops/add.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "autograd/backward_nodes.h"
#include "autograd/double_backward_edges.h"

namespace smelt::autograd {

namespace {

constexpr const char* kTwice =
    "smelt: this compiled function can be differentiated once (it is an exported program, it writes or "
    "draws random numbers, or one of its inputs is gone or was written); for higher derivatives use "
    "smelt.disable on it, backend='eager', or the model that was exported";
// It quotes torch.compile's message, for which users search.
constexpr const char* kTransformed =
    "smelt: transforms of torch.func cannot go through the backward of a compiled function (It looks like "
    "you're trying to call a compiled backward function within vmap/grad/vjp, which isn't supported); use "
    "smelt.disable on it, or backend='eager'";

constexpr const char* kModified =
    "smelt: a tensor that saved-tensor hooks got was modified after the forward; its gradient recomputes "
    "values from it that eager "
    "mode saves. Return a copy of it from the pack hook, or use smelt.disable on what differentiates it";

constexpr const char* kWrapped =
    "smelt: the gradient of a compiled function's result, a plain tensor, is a tensor subclass with its own "
    "operators, and the function cannot run again for it; use smelt.disable on it, or backend='eager'";

bool has_any(const at::Tensor& t, std::initializer_list<c10::DispatchKey> keys) {
    return t.key_set().has_any(c10::DispatchKeySet(keys));
}

bool is_lazy(const at::Tensor& t) {
    using c10::DispatchKey;
    return has_any(t, {DispatchKey::Conjugate, DispatchKey::Negative, DispatchKey::ZeroTensor,
                       DispatchKey::Functionalize, DispatchKey::Python});
}

// Whether `t` is a subclass with operators of its own. A plan would read memory that `t` may not have; autograd's operators,
// which `run_double_backward` calls, give what eager gives.
bool is_wrapper(const at::Tensor& t) {
    return has_any(t, {c10::DispatchKey::Python});
}

// Converts a tangent to what the backward was compiled for: dense, materialized, with this layout.
at::Tensor conform(const Layout& want, at::Tensor t) {
    using c10::DispatchKey;
    TORCH_CHECK(!has_any(t, {DispatchKey::FuncTorchBatched, DispatchKey::FuncTorchGradWrapper}),
                kTransformed);
    if (t.layout() != at::kStrided) t = t.to_dense();
    TORCH_CHECK(want.describes(t), "smelt: a gradient of " + described(want.dtype, want.shape) +
                                       " is expected, got " + described(t.scalar_type(), t.sizes()));
    return !is_lazy(t) && want.has_strides_of(t) ? t : want.copy_of(t);
}

// Converts the result of an unpack hook, or the data that the program has given a saved input, to the layout that the
// backward relies on: hooks preserve values, not layouts.
at::Tensor restored(const Layout& want, at::Tensor t, const char* origin) {
    TORCH_CHECK(t.sizes() == want.shape, "smelt: " + std::string(origin) + " a saved " +
                                             described(want.dtype, want.shape) + " is a " +
                                             described(t.scalar_type(), t.sizes()));
    if (t.layout() != at::kStrided) t = t.to_dense();
    if (!is_lazy(t) && want.describes(t) && want.has_strides_of(t)) return t;
    Layout once = want;  // without expanded dimensions (stride 0)
    for (size_t d = 0; d < once.shape.size(); ++d) {
        if (once.stride[d] != 0 || once.shape[d] == 0) continue;
        once.shape[d] = 1;
        t = t.narrow(static_cast<int64_t>(d), 0, 1);
    }
    return once.copy_of(t).expand(want.shape);
}

// Whether the current engine call requests all gradients that it can compute.
bool requests_all() {
    return current_task() < 0 || torch::autograd::get_current_graph_task_exec_info()->empty();
}

bool requests_any(const Node& node) {
    if (requests_all()) return true;
    for (size_t i = 0; i < node.num_outputs(); ++i)
        if (node.task_should_compute_output(i)) return true;
    return false;
}

// Whether a hook observes the gradient of a node in the current engine call, or that call returns it to its caller.
bool is_seen(const Node& node) {
    return has_hooks(node) || is_captured(node);
}

}  // namespace

bool Original::is_modified_in(const at::Tensor& value) const {
    if (!value.defined() || !value.has_storage()) return false;
    const c10::StorageImpl* memory = value.storage().unsafeGetStorageImpl();
    if (memory == tensor.storage._unsafe_get_target())
        return counter.enabled() && counter.current_version() != tensor.version;
    const at::Tensor now(tensor.impl.lock());  // its data may have been set
    return now.defined() && now.has_storage() && memory == now.storage().unsafeGetStorageImpl();
}

void SavedValue::check(const at::Tensor& value) const {
    TORCH_CHECK(!original || !original->is_modified_in(value), kModified);
}

Group::Group(c10::intrusive_ptr<Spec> spec, const NodeSpec& group)
    : spec_(std::move(spec)),
      group_(group),
      streams_(current_streams(spec_->devices)),
      ends_(group.ends.size()),
      outputs_(spec_->tangents.size()),
      arrived_(spec_->tangents.size(), kNever),
      released_(spec_->tangents.size(), kNever) {
    saved_.reserve(group.n_saved);
}

void Group::save(const at::Tensor& t, bool is_output, bool rebased_view) {
    saved_.push_back({SavedVariable(t, is_output, rebased_view), {}, is_output});
    if (t.defined() && at::SavedTensorDefaultHooks::get_hooks()) saved_.back().layout = layout_of(t);
}

void Group::save(at::Tensor number) {
    saved_.push_back({{}, std::move(number)});
}

void Group::drop_end(size_t end) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_[end] = nullptr;
}

void Group::drop_output(size_t tangent) {
    const std::lock_guard<std::mutex> lock(mutex_);
    outputs_[tangent] = nullptr;
    for (size_t b = 0; b < group_.buckets.size(); ++b) {
        const Mask& readers = group_.buckets[b].readers;
        bool is_read = false;
        for (size_t k = 0; k < readers.size(); ++k) is_read |= readers[k] && outputs_[k];
        if (readers[tangent] && !is_read) free(b);
    }
}

void Group::release(size_t tangent) {
    const std::lock_guard<std::mutex> lock(mutex_);
    // Before torch 2.13 the destructor of a node calls release_variables, too.
    if (!group_.is_single() && arrived_[tangent] != current_task()) return;
    released_[tangent] = current_task();
    // Eager does not free what the attributes of a custom function's context hold.
    if (!group_.is_single() || !spec_->conflicts[tangent][tangent]) return;
    for (size_t b = 0; b < group_.buckets.size(); ++b) free(b);
}

void Group::free(size_t bucket) {
    const Bucket& b = group_.buckets[bucket];
    // Fewer values are saved if saving one of them raised.
    const size_t end = std::min(b.first + b.saved.size(), saved_.size());
    for (size_t i = b.first; i < end; ++i) {
        saved_[i].variable.reset_data();
        saved_[i].result.reset();
    }
}

bool Group::is_freed_for(size_t tangent) const {
    for (size_t k = 0; k < released_.size(); ++k)
        if (released_[k] != kNever && released_[k] != current_task() && spec_->conflicts[tangent][k])
            return true;
    return false;
}

void Group::check(size_t tangent) const {
    TORCH_CHECK(!is_freed_for(tangent), torch::autograd::ERR_BACKWARD_TWICE);
}

bool Group::is_freed() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return group_.is_single() && is_freed_for(group_.tangents[0]);
}

Group::Task* Group::find(int id) {
    for (Task& task : tasks_)
        if (task.id == id) return &task;
    return nullptr;
}

Group::Task& Group::start(int id) {
    const size_t n = spec_->tangents.size();
    Task task{id, variable_list(n), Mask(n), variable_list(n_gradients()), 0};
    for (const Node* end : ends_) task.ends_left += in_current_task(end);
    return tasks_.emplace_back(std::move(task));
}

void Group::finish(int id) {
    for (size_t i = 0; i < tasks_.size(); ++i)
        if (tasks_[i].id == id) tasks_.erase(tasks_.begin() + static_cast<std::ptrdiff_t>(i--));
}

void Group::arrive(size_t tangent, at::Tensor gradient) {
    const int id = current_task();
    if (id < 0) return;  // called directly, outside an engine call
    const std::lock_guard<std::mutex> lock(mutex_);
    Task* task = find(id);
    if (!task) task = &start(id);
    if (gradient.defined() && task->ends_left && is_freed_for(tangent)) {
        finish(id);
        check(tangent);
    }
    arrived_[tangent] = id;
    task->ran[tangent] = 1;
    task->tangents[tangent] = std::move(gradient);
    if (task->ends_left == 0) finish(id);
}

variable_list Group::take(size_t end, const NodePtr& node) {
    const int id = current_task();
    variable_list gradients(group_.ends[end].edges.size());
    std::unique_lock<std::mutex> lock(mutex_);
    Task* task = find(id);
    if (!task) return gradients;
    const Mask mask = pending(*task, end);
    if (!mask.empty()) {
        variable_list tangents(mask.size());
        for (size_t k = 0; k < mask.size(); ++k)
            if (mask[k]) std::swap(tangents[k], task->tangents[k]);
        const Mask later = awaited(*task);
        lock.unlock();
        OnStreams streams(streams_, *node);
        variable_list computed;
        try {
            computed = compute(mask, std::move(tangents), later, node);
        } catch (...) {
            lock.lock();
            finish(id);
            // Nothing was freed, so the caller may retry.
            for (int& released : released_)
                if (released == id) released = kNever;
            throw;
        }
        lock.lock();
        task = find(id);
        add(*task, std::move(computed));
        streams.join();
    }
    for (size_t i = 0; i < gradients.size(); ++i)
        gradients[i] = std::move(task->gradients[group_.ends[end].edges[i]]);
    if (--task->ends_left == 0) finish(id);
    return gradients;
}

variable_list Group::take_alone(at::Tensor gradient, const NodePtr& node) {
    const End& end = group_.ends[0];
    variable_list gradients(end.edges.size());
    if (!gradient.defined() || !requests_any(*node)) return gradients;
    const size_t k = group_.tangents[0], n = spec_->tangents.size();
    Mask mask(n);
    mask[k] = 1;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        check(k);
    }
    variable_list tangents(n);
    tangents[k] = std::move(gradient);
    OnStreams streams(streams_, *node);
    variable_list computed = compute(mask, std::move(tangents), Mask(n), node);
    streams.join();
    for (size_t i = 0; i < gradients.size(); ++i) gradients[i] = std::move(computed[end.edges[i]]);
    return gradients;
}

Mask Group::pending(const Task& task, size_t end) const {
    Mask mask(task.tangents.size());
    for (size_t k = 0; k < mask.size(); ++k) mask[k] = task.tangents[k].defined();
    return intersect(mask, group_.ends[end].tangents) ? mask : Mask();
}

Mask Group::awaited(const Task& task) const {
    Mask mask(task.ran.size());
    for (size_t k : group_.tangents) mask[k] = !task.ran[k] && in_current_task(outputs_[k]);
    return mask;
}

void Group::add(Task& task, variable_list&& gradients) const {
    for (size_t e = 0; e < ends_.size(); ++e) {
        if (!in_current_task(ends_[e])) continue;
        for (size_t i : group_.ends[e].edges) {
            at::Tensor &sum = task.gradients[i], &more = gradients[i];
            sum = sum.defined() && more.defined() ? at::add(sum, more)
                  : sum.defined()                 ? sum
                                                  : std::move(more);
        }
    }
}

variable_list Group::compute(const Mask& mask, variable_list&& tangents, const Mask& awaited,
                             const NodePtr& node) {
    bool wrapped = false;
    for (at::Tensor& t : tangents) {
        if (!t.defined() || !is_wrapper(t)) continue;
        t = spec_->converted(std::move(t));
        wrapped |= is_wrapper(t);
    }
    if ((c10::GradMode::is_enabled() || wrapped) && spec_->has_double_backward) {
        variable_list primals, through;
        if (lock_double_backward_inputs(primals, through)) {
            unpack(mask, awaited, node);  // raises if a saved value was modified in place
            variable_list gradients = run_double_backward(primals, through, tangents);
            if (!c10::GradMode::is_enabled())
                for (at::Tensor& g : gradients)
                    if (g.defined()) g = g.detach();
            return gradients;
        }
    }
    TORCH_CHECK(!wrapped, kWrapped);
    const Reach reach = this->reach();
    const std::vector<bool> part = requested_part(mask, reach);
    const Backward* backward = spec_->find(mask, reach, part);
    if (!backward) backward = &spec_->compile_backward(mask, reach, part);
    variable_list arguments = unpack(mask, awaited, node);
    if (reach != Reach::segment && !keeps_graph()) free_segments(reach);
    for (at::Tensor& t : tangents)
        if (t.defined()) arguments.push_back(std::move(t));
    tangents.clear();
    const bool batched = std::any_of(arguments.begin(), arguments.end(), at::isBatchedTensor);
    if (!batched) conform_tangents(mask, arguments);
    variable_list kept;
    if (c10::GradMode::is_enabled()) kept = arguments;  // create_graph=True
    variable_list gradients =
        batched ? run_batch(*backward, mask, arguments) : run(*backward, std::move(arguments));
    if (!requests_all()) drop_unrequested(gradients);
    if (!kept.empty()) forbid_second(kept, gradients);
    return gradients;
}

variable_list Group::unpack(const Mask& mask, const Mask& awaited, const NodePtr& node) {
    variable_list values(spec_->saved.size());
    values.reserve(values.size() + spec_->tangents.size());
    std::vector<bool> is_substitute(spec_->saved.size());
    const auto read_or_substitute = [&](size_t i, auto&& read) {
        try {
            values[i] = read();
        } catch (const c10::Error&) {
            if (requests_all()) throw;
            values[i] = spec_->substitute(i, requested());
            if (!values[i].defined()) throw;
            is_substitute[i] = true;
        }
    };
    std::vector<std::pair<size_t, const SavedValue*>> of_primals;
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Bucket& bucket : group_.buckets) {
        const bool is_read = intersect(bucket.readers, mask);
        for (size_t k = 0; k < bucket.saved.size(); ++k) {
            const SavedValue& s = saved_[bucket.first + k];
            const size_t i = bucket.saved[k];
            if (s.number.defined())
                values[i] = s.number;
            else if (is_read && s.is_of_primal)
                of_primals.emplace_back(i, &s);
            else if (is_read)
                read_or_substitute(i, [&] { return unpack(s, spec_->saved[i], node); });
        }
    }
    for (const auto& of_primal : of_primals)
        read_or_substitute(of_primal.first, [&] {
            const size_t primal = *spec_->saved[of_primal.first].primal;
            TORCH_CHECK(!is_substitute[primal], torch::autograd::ERR_BACKWARD_TWICE);
            of_primal.second->check(values[primal]);
            return values[primal];
        });
    if (!keeps_graph()) free_read(mask, awaited);
    return values;
}

at::Tensor Group::unpack(const SavedValue& s, const SavedSource& source, const NodePtr& node) {
    at::Tensor value = s.variable.unpack(s.is_output ? node : NodePtr());
    s.check(value);
    if (s.result && s.result->has_new_data() && source.data == SavedSource::Data::new_data)
        return restored(layout_of(value), s.result->held.detach(), "the new data of");
    TORCH_CHECK(!s.result || !s.result->has_new_data(),
                "smelt: the backward reads a result of the compiled call, ",
                described(value.scalar_type(), value.sizes()),
                ", to whose `data` the program has assigned since. Eager computes some gradients from its "
                "old values and "
                "others from the new ones. Assign to `data` after the backward, or keep the new values in "
                "another tensor.");
    if (s.layout) value = restored(*s.layout, std::move(value), "what an unpack hook gave for");
    const auto& layout = source.layout;
    if (layout && !(layout->describes(value) && layout->has_strides_of(value)))
        value = restored(*layout, std::move(value), "the new data of");
    return value;
}

std::vector<bool> Group::requested() const {
    std::vector<bool> requested(n_gradients());
    for (size_t e = 0; e < ends_.size(); ++e)
        for (size_t i = 0; ends_[e] && i < group_.ends[e].edges.size(); ++i)
            if (ends_[e]->task_should_compute_output(i)) requested[group_.ends[e].edges[i]] = true;
    return requested;
}

std::vector<bool> Group::requested_part(const Mask& mask, Reach reach) const {
    if (requests_all()) return {};
    std::vector<bool> requested = this->requested();
    bool omits = false;
    for (size_t e = 0; e < ends_.size(); ++e)
        for (size_t i = 0; ends_[e] && i < group_.ends[e].edges.size(); ++i)
            omits |= ends_[e]->next_edge(i).is_valid() && !requested[group_.ends[e].edges[i]];
    if (!omits || !spec_->is_requested_again(mask, reach, requested)) return {};
    return requested;
}

void Group::drop_unrequested(variable_list& gradients) const {
    const std::vector<bool> requested = this->requested();
    for (size_t i = 0; i < gradients.size(); ++i)
        if (!requested[i]) gradients[i].reset();
}

void Group::free_read(const Mask& mask, const Mask& awaited) {
    Mask over(mask.size());  // tangents whose gradients are not computed again
    for (size_t k : group_.tangents) {
        bool is_over = (mask[k] && spec_->conflicts[k][k]) || !history_of(k);
        for (size_t r : group_.tangents)
            is_over |= (mask[r] || released_[r] != kNever) && spec_->conflicts[k][r];
        over[k] = is_over && !awaited[k];
    }
    for (size_t b = 0; b < group_.buckets.size(); ++b) {
        const Mask& readers = group_.buckets[b].readers;
        if (!intersect(readers, mask)) continue;
        bool is_over = true;
        for (size_t k = 0; k < readers.size(); ++k) is_over &= !readers[k] || over[k];
        if (is_over) free(b);
    }
}

void Group::free_segments(Reach reach) {
    const std::vector<bool> in_use = segments_in_use(reach);
    for (size_t p = 0; p < segments_.size(); ++p) {
        Group& segment = *segments_[p];
        const size_t k = segment.group_.tangents[0];
        if (in_use[p] || !spec_->conflicts[k][k]) continue;
        const std::lock_guard<std::mutex> lock(segment.mutex_);
        for (size_t b = 0; b < segment.group_.buckets.size(); ++b) segment.free(b);
    }
}

std::vector<bool> Group::segments_in_use(Reach reach) const {
    const size_t n = segments_.size();
    std::vector<size_t> n_edges(n), n_uses(n);
    std::vector<std::vector<bool>> leads(
        n, std::vector<bool>(n));  // leads[p][q]: an edge goes from segment p to segment q
    const auto count = [&](const Group& from, size_t at) {
        for (const Node* end : from.ends_) {
            if (!end) continue;
            for (const torch::autograd::Edge& edge : end->next_edges())
                for (size_t p = 0; p < n; ++p)
                    if (edge.function && edge.function.get() == segments_[p]->ends_[0]) {
                        ++n_edges[p];
                        n_uses[p] = edge.function.use_count();
                        if (at < n) leads[at][p] = true;
                    }
        }
    };
    count(*this, n);
    for (size_t p = 0; p < n; ++p) count(*segments_[p], p);
    std::vector<bool> in_use(n);
    std::vector<size_t> found;
    for (size_t p = 0; p < n; ++p)
        // References to a segment that no edge from here reaches are not counted.
        if (n_edges[p] == 0 || (reach == Reach::to_last && p + 1 == n) ||
            segments_[p]->is_used_elsewhere(n_uses[p] - n_edges[p]))
            found.push_back(p);
    while (!found.empty()) {
        const size_t p = found.back();
        found.pop_back();
        if (in_use[p]) continue;
        in_use[p] = true;
        for (size_t q = 0; q < n; ++q)
            if (leads[p][q]) found.push_back(q);
    }
    return in_use;
}

bool Group::is_used_elsewhere(size_t n_others) const {
    const Node* node = ends_[0];
    if (!node) return false;
    if (!in_current_task(node)) return true;  // the engine does not free what it does not run
    // Other references come from tensors computed from the output, a root of the engine call, or the program. A
    // reference from the output alone does not cause a gradient to flow.
    const at::Tensor output(output_ ? output_->lock() : nullptr);
    const bool is_history = output.defined() && torch::autograd::impl::grad_fn_unsafe(output) == node;
    return n_others != static_cast<size_t>(is_history);
}

const Node* Group::history_of(size_t tangent) const {
    if (group_.is_single()) return tangent == group_.tangents[0] ? ends_[0] : nullptr;
    return outputs_[tangent];
}

Reach Group::reach() const {
    const auto is_node = [](const Node* end) { return end != nullptr; };  // none: compiled autograd runs it
    const bool is_recorded = std::any_of(ends_.begin(), ends_.end(), is_node);
    if (!group_.whole || !is_recorded || current_task() < 0) return Reach::segment;
    const bool to_last = ends_at_last();
    for (size_t i = 0; i < spec_->through.size(); ++i) {
        const bool is_end = to_last && spec_->through[i] == segments_.back()->only_output();
        if (!is_end && is_observed(i)) return Reach::segment;
    }
    return to_last ? Reach::to_last : Reach::whole;
}

bool Group::ends_at_last() const {
    if (!group_.ends_at_last || segments_.empty()) return false;
    const Node* last = segments_.back()->ends_[0];
    if (!last || !in_current_task(last)) return false;
    if (is_seen(*last)) return true;
    // No earlier segment leads to the last one.
    size_t n_edges = 0, n_uses = 0;
    for (const Node* end : ends_) {
        if (!end) continue;
        for (const torch::autograd::Edge& edge : end->next_edges()) {
            if (edge.function.get() != last) continue;
            ++n_edges;
            n_uses = edge.function.use_count();
        }
    }
    return n_edges == 0 || segments_.back()->is_used_elsewhere(n_uses - n_edges);
}

bool Group::is_observed(size_t through) const {
    if (current_task() < 0) return true;
    for (size_t e = 0; e < ends_.size(); ++e) {
        for (size_t i = 0; ends_[e] && i < group_.ends[e].edges.size(); ++i) {
            const auto cut = ends_[e]->next_edge(i).function;
            if (group_.ends[e].edges[i] != spec_->gradients.size() + through || !cut) continue;
            const auto* own = dynamic_cast<const CompiledBackward*>(cut.get());
            if (is_seen(*cut) || (own && own->is_freed())) return true;
        }
    }
    return false;
}

bool Group::lock_double_backward_inputs(variable_list& primals, variable_list& through) const {
    for (size_t i = 0; i < double_backward_inputs_.primals.size(); ++i) {
        const WeakTensor& p = double_backward_inputs_.primals[i];
        primals.emplace_back(p.impl.lock());
        const auto& written = spec_->rewritten;
        const bool may_change = std::find(written.begin(), written.end(), i) != written.end();
        if (!primals.back().defined()) return false;
        if (may_change) continue;
        if (p.was_written()) return false;
        const std::optional<Layout> layout = i < spec_->layouts.size() ? spec_->layouts[i] : std::nullopt;
        if (layout && !(layout->describes(primals.back()) && layout->has_strides_of(primals.back())))
            return false;
    }
    for (size_t i = 0; i < double_backward_inputs_.through.size(); ++i) {
        const WeakTensor& output = double_backward_inputs_.through[i];
        through.emplace_back(output.impl.lock());
        if (through.back().defined() ? output.was_written() : is_observed(i)) return false;
    }
    return true;
}

variable_list Group::run_double_backward(const variable_list& primals, const variable_list& through,
                                         const variable_list& tangents) const {
    variable_list gradients = spec_->differentiate_again(double_backward_inputs_, primals, through, tangents);
    const variable_list results(gradients.begin() + static_cast<std::ptrdiff_t>(n_gradients()),
                                gradients.end());
    gradients.resize(n_gradients());
    reroute_to_outputs(gradients, results, primals, through, tangents);
    return gradients;
}

void Group::reroute_to_outputs(variable_list& gradients, const variable_list& results,
                               const variable_list& primals, const variable_list& through,
                               const variable_list& tangents) const {
    using torch::autograd::impl::gradient_edge;
    Routes routes;
    for (size_t k = 0; k < results.size(); ++k) {
        if (!results[k].defined() || !results[k].grad_fn()) continue;
        const size_t output = spec_->tangents[k].output;
        const auto cut = std::find(spec_->through.begin(), spec_->through.end(), output);
        Edge to;
        if (const Node* own = history_of(k)) {
            to = Edge(const_cast<Node*>(own)->getptr(), 0);
        } else if (cut != spec_->through.end()) {
            at::Tensor t = through[static_cast<size_t>(cut - spec_->through.begin())];
            if (!t.defined() && spec_->is_epilogue_output(output)) {  // created after this group
                const WeakTensor& taken = double_backward_inputs_.taken[output - spec_->n_outputs];
                if (!taken.was_written()) t = at::Tensor(taken.impl.lock());
            }
            if (t.defined() && t.requires_grad()) to = gradient_edge(t);
        }
        if (!to.is_valid()) continue;
        // In the recomputed graph a tensor that is copied into an input is the same tensor as that input. The copy
        // precedes the input in the original graph, so the input's route replaces its route.
        const Edge from = gradient_edge(results[k]);
        routes.erase(std::remove_if(routes.begin(), routes.end(),
                                    [&](const auto& route) { return route.first == from; }),
                     routes.end());
        routes.emplace_back(from, std::move(to));
    }
    Routes of_views;
    for (const at::Tensor& t : results)
        if (t.defined() && t.is_view() && t.grad_fn() && t.grad_fn()->num_inputs() == 1)
            for (const auto& route : routes)
                if (route.first == gradient_edge(t)) of_views.push_back(route);
    std::unordered_set<const Node*> ends;
    for (const auto& [_, to] : routes) ends.insert(to.function.get());
    for (const variable_list* list : {&primals, &through, &tangents})
        for (const at::Tensor& t : *list)
            if (t.defined() && t.requires_grad()) ends.insert(gradient_edge(t).function.get());
    reroute(gradients, routes, of_views, ends);
}

void Group::conform_tangents(const Mask& mask, variable_list& arguments) const {
    size_t at = spec_->saved.size();
    for (size_t i = 0; i < mask.size(); ++i) {
        if (!mask[i]) continue;
        arguments[at] = conform(spec_->tangents[i].layout, std::move(arguments[at]));
        ++at;
    }
}

variable_list Group::run_batch(const Backward& backward, const Mask& mask, const variable_list& arguments) {
    int64_t level = 0, size = 0;
    for (const at::Tensor& t : arguments) {
        const auto* batch = at::maybeGetBatchedImpl(t);
        if (!batch) continue;
        TORCH_CHECK(batch->bdims().size() == 1, kTransformed);
        level = batch->bdims()[0].level();
        size = batch->value().size(batch->bdims()[0].dim());
    }
    std::vector<variable_list> samples(n_gradients());
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
    variable_list gradients(n_gradients());
    for (size_t k = 0; k < gradients.size(); ++k)
        if (!samples[k].empty()) gradients[k] = at::addBatchDim(at::stack(samples[k]), level, 0);
    return gradients;
}

variable_list Group::run(const Backward& backward, variable_list&& arguments) {
    c10::AutoGradMode no_grad(false);
    std::vector<bool> numbers(arguments.size());
    size_t at = 0;
    for (const Bucket& bucket : group_.buckets)
        for (size_t i : bucket.saved) numbers[i] = saved_[at++].number.defined();
    return backward.run(std::move(arguments), numbers);
}

void Group::forbid_second(const variable_list& arguments, variable_list& gradients) const {
    edge_list edges;
    for (const Node* end : ends_)
        if (end) edges.insert(edges.end(), end->next_edges().begin(), end->next_edges().end());
    bool depends = false;
    for (size_t i = 0; i < arguments.size(); ++i) {
        const at::Tensor& t = arguments[i];
        const bool tangent = i >= spec_->saved.size();
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

bool Group::is_tangent(const variable_list& arguments, const at::Tensor& t) const {
    for (size_t i = spec_->saved.size(); i < arguments.size(); ++i)
        if (arguments[i].is_same(t)) return true;
    return false;
}

}  // namespace smelt::autograd
