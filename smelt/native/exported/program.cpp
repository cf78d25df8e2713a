#include "include/smelt/program.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <atomic>
#include <list>
#include <mutex>
#include <set>
#include <shared_mutex>

#include "autograd/record_nodes.h"
#include "exported/input_checks.h"
#include "exported/processor.h"
#include "exported/program_file.h"
#include "exported/program_gradients.h"
#include "exported/program_plans.h"
#include "exported/tables.h"
#include "plan/plan.h"
#include "torch.h"
#include "values/decode.h"

namespace smelt {

using exported::ArgumentReader;
using exported::Bound;
using exported::Input;
using exported::Method;
using exported::NumberOf;
using exported::ProgramFile;
using exported::ProgramPlans;
using exported::ResultNode;
using exported::Target;
using exported::Tensors;
using values::FormatError;
using values::Value;

namespace exported {

// What calls with certain sizes run. `spec`: of the autograd nodes; null for a method without gradients.
struct Instance {
    std::unique_ptr<plan::Plan> plan;
    c10::intrusive_ptr<ProgramSpec> spec;
};

// The instances of a method by the sizes of calls. Thread-safe.
class PlanCache {
  public:
    PlanCache(ProgramPlans& plans, const Method& method, std::shared_ptr<BackwardPlans> backwards)
        : plans_(plans), method_(method), backwards_(std::move(backwards)) {}

    // `slots`: the sizes, then the values of Method::program.
    std::shared_ptr<const Instance> at(const std::vector<int64_t>& slots) {
        const std::vector<int64_t> sizes(slots.begin(),
                                         slots.begin() + static_cast<std::ptrdiff_t>(method_.sizes.size()));
        {
            const std::shared_lock<std::shared_mutex> lock(mutex_);
            const auto found = cached_.find(sizes);
            if (found != cached_.end()) return found->second;
        }
        const std::unique_lock<std::shared_mutex> lock(mutex_);
        if (const auto found = cached_.find(sizes); found != cached_.end()) return found->second;
        auto program = plans_.at(sizes);
        if (!program) throw ProgramError("the program has no plan for " + text(sizes));
        auto made = std::make_shared<Instance>();
        made->plan = std::make_unique<plan::Plan>(std::move(program));
        made->plan->set_budget(budget_);
        if (method_.gradients)
            made->spec =
                c10::make_intrusive<ProgramSpec>(method_, *made->plan->program, sizes, slots, backwards_);
        if (order_.size() >= kMostInstances) {
            cached_.erase(order_.front());
            order_.pop_front();
        }
        order_.push_back(sizes);
        return cached_[sizes] = made;
    }

  private:
    std::string text(const std::vector<int64_t>& sizes) const {
        std::string text;
        for (size_t i = 0; i < sizes.size(); ++i) {
            const auto& rule = method_.sizes[i];
            text += (i ? ", " : "") + (rule.name.empty() ? rule.text : rule.name) + " = " +
                    std::to_string(sizes[i]);
        }
        return text;
    }

    ProgramPlans& plans_;
    const Method& method_;
    const std::shared_ptr<BackwardPlans> backwards_;
    const std::shared_ptr<plan::ArenaBudget> budget_ =
        std::make_shared<plan::ArenaBudget>(kIdleArenas, nullptr);
    std::shared_mutex mutex_;
    std::map<std::vector<int64_t>, std::shared_ptr<const Instance>> cached_;
    std::list<std::vector<int64_t>> order_;
};

}  // namespace exported

namespace {

const Target& target_here(const exported::Tables& tables, int64_t graph) {
    std::string reasons;
    for (const Target& target : tables.targets) {
        if (target.graph != graph) continue;
        auto reason = exported::other_torch(target.torch);
        if (!reason) reason = exported::lacking(target.triple, target.needs);
        if (!reason) return target;
        reasons += (reasons.empty() ? "" : "; ") + *reason;
    }
    throw ProgramError(
        (reasons.empty() ? "the program has no plans" : reasons) +
        ". C++ cannot compile the program again: export the model with this torch, on a processor like "
        "this one or with SMELT_CPU set to its level");
}

}  // namespace

namespace exported {

// The names and tensors of the state. Thread-safe.
class ProgramState {
  public:
    explicit ProgramState(State loaded) {
        Tensors tensors;
        for (auto& [name, tensor] : loaded) {
            if (!names.emplace(name, names.size()).second) throw FormatError("two weights of one name");
            ordered.push_back(name);
            tensors.push_back(std::move(tensor));
        }
        tensors_ = std::make_shared<const Tensors>(std::move(tensors));
    }

    size_t number_of(const std::string& name) const {
        const auto found = names.find(name);
        if (found == names.end()) throw FormatError("no tensor " + name + " in the state");
        return found->second;
    }

    std::shared_ptr<const Tensors> snapshot() const { return std::atomic_load(&tensors_); }

    // The state with these tensors instead of its own.
    void replace(const std::vector<std::pair<size_t, at::Tensor>>& tensors) {
        const std::lock_guard<std::mutex> lock(replacing_);
        auto changed = std::make_shared<Tensors>(*snapshot());
        for (const auto& [number, tensor] : tensors) (*changed)[number] = tensor;
        std::atomic_store(&tensors_, std::shared_ptr<const Tensors>(std::move(changed)));
    }

    std::map<std::string, size_t> names;
    std::vector<std::string> ordered;
    std::set<std::string> constants;  // that plans hold

  private:
    std::shared_ptr<const Tensors> tensors_;
    std::mutex replacing_;
};

// A method, ready to be called.
struct LoadedMethod {
    LoadedMethod(Method of, const Tables& tables, const std::shared_ptr<const ProgramFile>& file,
                 ProgramState& state)
        : method(std::move(of)), plans(plans_of(method.graph, tables, file, state)) {
        for (const Input& input : method.inputs)
            inputs_of_state.push_back(
                std::holds_alternative<std::string>(input)
                    ? static_cast<int64_t>(state.number_of(std::get<std::string>(input)))
                    : -1);
        for (const auto& [name, output] : method.stores) stored.emplace_back(state.number_of(name), output);
        std::set<std::string> named;
        for (const exported::Parameter& p : method.signature)
            if (p.kind != 4) named.insert(p.name);
        for (const std::string& key : method.keywords)
            if (!named.count(key)) rest.push_back(key);
        const auto& may_require = method.differentiated;
        for (size_t i = 0; i < method.inputs.size(); ++i)
            if ((method.gradients || inputs_of_state[i] < 0) &&
                std::find(may_require.begin(), may_require.end(), i) == may_require.end())
                without_gradient.push_back(i);
        auto backwards = std::make_shared<BackwardPlans>();
        if (method.gradients) add_backwards(*backwards, tables, file, state);
        cache = std::make_unique<PlanCache>(*plans, method, std::move(backwards));
    }

    void add_backwards(BackwardPlans& backwards, const Tables& tables,
                       const std::shared_ptr<const ProgramFile>& file, ProgramState& state) const {
        for (const BackwardData& b : method.gradients->backwards)
            backwards.add({b.defined, b.reach}, plans_of(b.graph, tables, file, state));
        for (const Gradients::Group& group : method.gradients->groups)
            for (const size_t k : group.tangents)
                if (!backwards.has({{k}, 0})) throw FormatError("a result without a backward");
    }

    static std::shared_ptr<ProgramPlans> plans_of(int64_t graph, const Tables& tables,
                                                  const std::shared_ptr<const ProgramFile>& file,
                                                  ProgramState& state) {
        const Target& target = target_here(tables, graph);
        const auto tensors = state.snapshot();
        std::vector<ProgramPlans::Source> sources;
        for (size_t i = 0; i < target.plans.size(); ++i) {
            ProgramPlans::Source source;
            for (const std::string& name : target.constants[i]) {
                state.constants.insert(name);
                source.constants.push_back((*tensors)[state.number_of(name)]);
            }
            source.section = [file, name = target.plans[i]] { return unpacked(file->section(name)); };
            sources.push_back(std::move(source));
        }
        return std::make_shared<ProgramPlans>(unpacked(file->section(target.code)), std::move(sources));
    }

    const Method method;
    const std::shared_ptr<ProgramPlans> plans;
    std::vector<int64_t> inputs_of_state;  // per input of the graph; -1: of the arguments
    std::vector<std::pair<size_t, size_t>> stored;
    std::vector<std::string> rest;         // keywords of `**kwargs`
    std::vector<size_t> without_gradient;  // inputs that must not require grad
    std::unique_ptr<PlanCache> cache;
};

}  // namespace exported

struct Program::Data {
    Data(const std::string& path, const std::optional<std::string>& weights)
        : file(std::make_shared<const ProgramFile>(path)), state(file->state(weights)) {
        const exported::Tables tables = exported::read_tables(file->section("tables"));
        if (tables.methods.empty()) throw FormatError("a program without methods");
        std::set<std::string> known;
        for (const Method& method : tables.methods) {
            if (!known.insert(method.name).second) throw FormatError("two methods of one name");
            methods.push_back(std::make_unique<exported::LoadedMethod>(method, tables, file, state));
        }
    }

    const std::shared_ptr<const ProgramFile> file;
    exported::ProgramState state;
    std::vector<std::unique_ptr<exported::LoadedMethod>> methods;
};

namespace {

c10::IValue boxed(const exported::Number& number) {
    return std::visit([](auto n) { return c10::IValue(n); }, number);
}

at::Tensor number_tensor(const c10::IValue& x) {
    if (x.isDouble()) return plan::number_tensor(x.toDouble());
    if (x.isInt()) return plan::number_tensor(x.toInt());
    throw InputError("a number is expected, got " + x.tagKind());
}

// An input of the plan: a tensor, a number as one, or undefined if the plan does not read it.
at::Tensor input_of(const plan::Program& p, size_t i, const c10::IValue& x) {
    if (p.is_number[i]) return number_tensor(x);
    if (x.isTensor()) return x.toTensor();
    if (p.is_read[i]) throw InputError("a tensor is expected, got " + x.tagKind());
    return {};
}

c10::IValue container(const ResultNode& node, std::vector<c10::IValue> items) {
    const Value& value = std::get<Value>(node.value);
    if (node.kind == "constant") return exported::constant(value);
    if (node.kind == "tuple" || node.kind == "size") return c10::ivalue::Tuple::create(std::move(items));
    if (node.kind == "list") {
        c10::impl::GenericList list(c10::AnyType::get());
        for (c10::IValue& item : items) list.push_back(std::move(item));
        return list;
    }
    const bool has_fields = node.kind == "fields";
    const values::Items& keys = values::tuple(has_fields ? values::tuple(value)[2] : value);
    const bool has_names =
        std::all_of(keys.begin(), keys.end(), [](const Value& key) { return key.get<std::string>(); });
    c10::TypePtr type = has_names ? c10::TypePtr(c10::StringType::get()) : c10::TypePtr(c10::AnyType::get());
    c10::impl::GenericDict dict(type, c10::AnyType::get());
    for (size_t i = 0; i < keys.size(); ++i) dict.insert(exported::constant(keys[i]), std::move(items[i]));
    return dict;
}

}  // namespace

Program Program::load(const std::string& path) {
    return load_with(path, {});
}

Program Program::load(const std::string& path, const std::string& weights) {
    return load_with(path, weights);
}

Program Program::load_with(const std::string& path, const std::optional<std::string>& weights) {
    try {
        return {std::make_shared<Data>(path, weights), 0};
    } catch (const FormatError& error) {
        throw ProgramError(path + ": " + error.what());
    } catch (const ProgramError& error) {
        throw ProgramError(path + ": " + error.what());
    }
}

namespace {

// Why input `i` must not require grad.
std::string required(const Method& method, size_t i) {
    std::string name = "a tensor of the state";
    if (const auto* text = std::get_if<std::string>(&method.inputs[i])) name = *text;
    if (const auto* path = std::get_if<exported::Path>(&method.inputs[i]))
        for (const auto& rule : method.rules)
            if (const auto* r = std::get_if<exported::TensorRule>(&rule); r && r->path == *path)
                name = r->text;
    const std::string how = "pass it with .detach(), or call the program under torch.no_grad()";
    return method.gradients
               ? name + " requires grad, but did not at the export: export the program with one that does, " +
                     how
               : name +
                     " requires grad, but the program was exported without gradients: export it with "
                     "gradients=True, " +
                     how;
}

// Runs a method under autograd, or without it if no input requires grad. An output that is an input is that tensor.
std::vector<at::Tensor> run(const exported::Instance& instance, const std::vector<at::Tensor>& inputs) {
    const plan::Program& p = *instance.plan->program;
    const auto forward = [&] {
        const at::NoGradGuard no_gradients;
        return plan::run_borrowed(*instance.plan, inputs);
    };
    const auto requires_grad = [&](size_t i) { return inputs[i].defined() && inputs[i].requires_grad(); };
    if (!instance.spec || !autograd::is_differentiated(*instance.spec, requires_grad)) return forward();
    autograd::CallInputs read(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
        read.tensors[i] = inputs[i];
        read.is_number[i] = p.is_number[i];
    }
    const autograd::Recorder recorder(instance.spec, read);
    std::vector<at::Tensor> results = forward();
    autograd::CallResults outcome;
    for (size_t i = 0; i < results.size(); ++i) {
        const plan::Reg r = p.outputs[i];
        const bool is_input = p.is_input(r);
        outcome.results.push_back(
            {is_input ? inputs[static_cast<size_t>(r)] : std::move(results[i]), is_input});
    }
    recorder.record(outcome, [](size_t) {});
    for (size_t i = 0; i < results.size(); ++i) results[i] = std::move(outcome.results[i].tensor);
    return results;
}

}  // namespace

c10::IValue Program::operator()(const Arguments& arguments, const Keywords& keywords) const {
    exported::ProgramState& all = data_->state;
    const exported::LoadedMethod& d = *data_->methods[method_];
    const Method& method = d.method;
    const Bound bound = exported::bound(method, arguments, keywords);
    if (d.rest.size() > 1) {
        std::vector<std::string> order;
        for (const auto& [name, value] : keywords)
            if (std::find(d.rest.begin(), d.rest.end(), name) != d.rest.end()) order.push_back(name);
        if (order != d.rest)
            throw InputError("pass the keywords " + c10::Join(", ", d.rest) +
                             " in this order, as at the export");
    }
    const std::shared_ptr<const Tensors> state = all.snapshot();
    ArgumentReader read(method, bound, *state, all.names);
    const std::shared_ptr<const exported::Instance> instance = d.cache->at(exported::check(method, read));
    const plan::Program& p = *instance->plan->program;
    if (p.n_inputs != method.inputs.size()) throw ProgramError("a plan with other inputs than its program");
    std::vector<at::Tensor> inputs(p.n_inputs);
    std::vector<c10::IValue> passed(p.n_inputs);  // the objects, for results that are inputs
    for (size_t i = 0; i < p.n_inputs; ++i) {
        if (d.inputs_of_state[i] >= 0)
            passed[i] = (*state)[static_cast<size_t>(d.inputs_of_state[i])];
        else if (const auto* number = std::get_if<NumberOf>(&method.inputs[i]))
            passed[i] = boxed(read.number(*number));
        else
            passed[i] = read(std::get<exported::Path>(method.inputs[i]));
        inputs[i] = input_of(p, i, passed[i]);
    }
    if (c10::GradMode::is_enabled())
        for (const size_t i : d.without_gradient)
            if (inputs[i].defined() && inputs[i].requires_grad()) throw InputError(required(method, i));
    const std::vector<at::Tensor> results = run(*instance, inputs);
    auto result = [&](size_t i) -> c10::IValue {
        if (i >= results.size()) throw ProgramError("a plan with other results than its program");
        const plan::Reg r = p.outputs[i];
        if (p.is_input(r)) return passed[static_cast<size_t>(r)];
        return results[i].defined() ? c10::IValue(results[i]) : c10::IValue();
    };
    if (!d.stored.empty()) {
        std::vector<std::pair<size_t, at::Tensor>> replaced;
        for (const auto& [number, output] : d.stored)
            replaced.emplace_back(number, result(output).toTensor());
        all.replace(replaced);
    }
    std::vector<c10::IValue> made;
    for (const ResultNode& node : method.result) {
        if (node.kind == "tensor") {
            made.push_back(result(std::get<size_t>(node.value)));
        } else if (node.kind == "input") {
            const size_t at = std::get<size_t>(node.value);
            made.push_back(node.is_path ? read.passed(at) : passed.at(at));
        } else if (node.kind == "number") {
            made.push_back(boxed(read.number(std::get<NumberOf>(node.value))));
        } else {
            std::vector<c10::IValue> items;
            for (const size_t part : node.parts) items.push_back(made[part]);
            made.push_back(container(node, std::move(items)));
        }
    }
    return made.back();
}

Program Program::method(const std::string& name) const {
    std::string known;
    for (size_t i = 0; i < data_->methods.size(); ++i) {
        if (data_->methods[i]->method.name == name) return Program(data_, i);
        known += (i ? ", " : "") + data_->methods[i]->method.name;
    }
    throw InputError("the program has no method " + name + ", only " + known);
}

std::vector<std::string> Program::methods() const {
    std::vector<std::string> found;
    for (const auto& loaded : data_->methods) found.push_back(loaded->method.name);
    return found;
}

const std::string& Program::name() const {
    return data_->methods[method_]->method.name;
}

std::vector<Parameter> Program::signature() const {
    std::vector<Parameter> found;
    for (const exported::Parameter& p : data_->methods[method_]->method.signature)
        found.push_back({p.name, static_cast<Parameter::Kind>(p.kind), p.has_default});
    return found;
}

std::vector<DynamicSize> Program::dynamic_sizes() const {
    std::vector<DynamicSize> found;
    for (const exported::SizeRule& s : data_->methods[method_]->method.sizes)
        if (!s.is_remainder && !s.over)
            found.push_back({s.text, s.name, s.dim, s.low * s.divisor,
                             s.high < INT64_MAX / s.divisor ? s.high * s.divisor : s.high});
    return found;
}

std::vector<std::string> Program::input_checks() const {
    std::vector<std::string> found;
    for (const auto& rule : data_->methods[method_]->method.rules)
        if (const auto* any = std::get_if<exported::Rule>(&rule)) found.push_back(any->text);
    return found;
}

std::map<std::string, at::Tensor> Program::state() const {
    const auto tensors = data_->state.snapshot();
    std::map<std::string, at::Tensor> found;
    for (const auto& [name, number] : data_->state.names) found[name] = (*tensors)[number];
    return found;
}

std::vector<std::pair<std::string, at::Tensor>> Program::named_parameters() const {
    const auto tensors = data_->state.snapshot();
    std::vector<std::pair<std::string, at::Tensor>> found;
    for (size_t i = 0; i < tensors->size(); ++i)
        if ((*tensors)[i].requires_grad() && (*tensors)[i].is_leaf())
            found.emplace_back(data_->state.ordered[i], (*tensors)[i]);
    return found;
}

std::vector<at::Tensor> Program::parameters() const {
    std::vector<at::Tensor> found;
    for (auto& [name, tensor] : named_parameters()) found.push_back(std::move(tensor));
    return found;
}

bool Program::writes_state() const {
    const exported::LoadedMethod& d = *data_->methods[method_];
    if (!d.stored.empty()) return true;
    const std::vector<char> written = d.plans->written_inputs();
    for (size_t i = 0; i < d.inputs_of_state.size() && i < written.size(); ++i)
        if (d.inputs_of_state[i] >= 0 && written[i]) return true;
    return false;
}

namespace {

// As Python shows it (smelt/exported/weight_updates.py).
std::string text_of(const at::Tensor& t) {
    std::string text =
        "torch." + std::string(values::name_of(t.scalar_type())) + " of " + exported::shape_text(t);
    if (t.layout() != c10::Layout::Strided)
        text += ", torch." + std::string(values::name_of(t.layout())) + ",";
    return text;
}

}  // namespace

void Program::update_weights(const std::map<std::string, at::Tensor>& weights) const {
    exported::ProgramState& d = data_->state;
    const auto before = d.snapshot();
    for (const auto& [name, value] : weights) {
        const auto found = d.names.find(name);
        if (found == d.names.end()) throw InputError("the program has no weight " + name);
        if (d.constants.count(name)) throw InputError(name + " is a constant of the program's plans");
        const at::Tensor& known = (*before)[found->second];
        if (!value.defined() || value.sizes() != known.sizes() ||
            value.scalar_type() != known.scalar_type() || value.device() != known.device() ||
            value.layout() != c10::Layout::Strided)
            throw InputError(
                "the weight " + name + " must be " + text_of(known) + " on " +
                (known.device().is_cpu() ? "the CPU" : known.device().str()) + ", got " +
                (value.defined() ? text_of(value) + " on " + value.device().str() : "an undefined tensor"));
    }
    const at::NoGradGuard no_gradients;
    const c10::InferenceMode ordinary(false);
    // Storages of tensors that require grad, which stay.
    std::set<const void*> kept;
    for (const at::Tensor& t : *before)
        if (t.requires_grad()) kept.insert(t.storage().unsafeGetStorageImpl());
    // New storages, and all tensors of the state that are views of the earlier ones.
    std::map<const void*, at::Tensor> storages;
    for (const auto& [name, value] : weights) {
        const at::Tensor& known = (*before)[d.names[name]];
        const c10::Storage& storage = known.storage();
        if (kept.count(storage.unsafeGetStorageImpl())) {
            known.copy_(value);
            continue;
        }
        at::Tensor& copy = storages[storage.unsafeGetStorageImpl()];
        if (copy.defined()) continue;
        const auto bytes = static_cast<int64_t>(storage.nbytes());
        const auto options = at::TensorOptions(at::kByte).device(storage.device());
        copy = at::empty({0}, options).set_(storage, 0, {bytes}, {1}).clone();
    }
    std::vector<std::pair<size_t, at::Tensor>> changed;
    for (const auto& [name, number] : d.names) {
        const at::Tensor& t = (*before)[number];
        const auto found = storages.find(t.storage().unsafeGetStorageImpl());
        if (found == storages.end()) continue;
        at::Tensor moved = at::empty({0}, t.options())
                               .set_(found->second.storage(), t.storage_offset(), t.sizes(), t.strides());
        if (const auto value = weights.find(name); value != weights.end()) moved.copy_(value->second);
        changed.emplace_back(number, std::move(moved));
    }
    d.replace(changed);
}

}  // namespace smelt
