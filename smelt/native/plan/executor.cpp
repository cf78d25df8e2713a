#include "plan/executor.h"

#include <c10/core/DeviceGuard.h>

#include <string>

#include "devices/gpu_driver.h"
#include "plan/inner_plans.h"
#include "plan/profiler_events.h"
#include "plan/kernel_launcher.h"
#include "plan/tensor_allocation.h"
#include "plan/plan.h"

namespace smelt::plan {
namespace {

class Run {
  public:
    Run(const Program& p, BorrowedRegisters& registers, const Names* names)
        : p_(p),
          f_(*registers),
          names_(names),
          queue_{registers.stream().device.index(), registers.stream().handle} {
        if (p.dispatches) caller_ = c10::impl::tls_local_dispatch_key_set();
    }

    void operator()(const std::vector<Step>& steps) {
        std::optional<c10::impl::ForceDispatchKeyGuard> guard;
        if (p_.dispatches) guard.emplace(below_autograd(*caller_));
        for (const Step& s : steps) {
            switch (s.kind) {
                case Kind::launch:
                    launch(s.index);
                    break;
                case Kind::parallel_launch:
                    parallel_launch(s.index);
                    break;
                case Kind::alloc:
                    alloc(p_.allocs[s.index]);
                    break;
                case Kind::view:
                    view(p_.views[s.index]);
                    break;
                case Kind::aten:
                    aten(s.index);
                    break;
                case Kind::run_plans:
                    run_plans(s.index);
                    break;
                case Kind::free:
                    for (Reg r : p_.frees[s.index].regs) f_.tensors[r].reset();
                    break;
                case Kind::bump:
                    for (Reg r : p_.bumps[s.index].regs) f_.tensors[r].unsafeGetTensorImpl()->bump_version();
                    break;
            }
        }
    }

  private:
    void alloc(const Alloc& a) {
        if (a.arena >= 0) {
            if (!f_.arena) take_arena(p_, f_);
            return;
        }
        at::Tensor t = a.over >= 0 ? in_place_of(f_.tensors[a.over], a) : at::Tensor();
        f_.tensors[a.out] = t.defined() ? std::move(t) : allocate(a, p_.device);
        if (p_.needs_data[a.out]) f_.data[a.out] = f_.tensors[a.out].unsafeGetTensorImpl()->mutable_data();
    }

    void view(const View& v) {
        if (v.in_arena) return;
        const at::Tensor& src = f_.tensors[v.src];
        if (v.user_visible) {
            c10::impl::ForceDispatchKeyGuard guard(*caller_);
            f_.tensors[v.out] = src.as_strided(v.shape, v.stride, src.storage_offset() + v.offset);
        } else {
            f_.tensors[v.out] = raw_view(v, src);
        }
        if (p_.needs_data[v.out])
            f_.data[v.out] =
                static_cast<char*>(f_.data[v.src]) + v.offset * static_cast<int64_t>(src.element_size());
    }

    void launch(size_t i) {
        const Event event = names_ ? event_of_step(names_->launches[i]) : nullptr;
        const Launch& l = p_.launches[i];
        on_stream_of(l, [&](const Queue& queue) { l.launcher->launch(l, f_.data.data(), queue); });
    }

    void parallel_launch(size_t i) {
        const Event event = names_ ? event_of_step(names_->batched_launches[i]) : nullptr;
        const BatchedLaunch& t = p_.batched_launches[i];
        const Launch* launches = p_.launches.data() + t.first;
        on_stream_of(*launches, [&](const Queue& queue) {
            launches->launcher->parallel_launch(t, launches, f_.data.data(), queue);
        });
    }

    // Work of another GPU runs on the current stream of that GPU, with its context current: copies between the two
    // GPUs synchronize both streams.
    template <class Start>
    void on_stream_of(const Launch& l, const Start& start) {
        if (l.elsewhere < 0) return start(queue_);
        const c10::Device device(p_.device.type(), l.elsewhere);
        const c10::DeviceGuard guard(device);
        const devices::Entered context(l.elsewhere);
        start(Queue{l.elsewhere, current_stream_of(device).handle});
    }

    // Not inlined: graphs of kernels only, which take less than a microsecond, should use little stack.
    [[gnu::noinline]] void aten(size_t i) {
        const Event event = names_ ? event_of_step(names_->atens[i]) : nullptr;
        const Aten& a = p_.atens[i];
        // A custom operator may call this plan again: that call has its own register file, and so its own stack.
        torch::jit::Stack& stack = f_.stack;
        stack.assign(a.args.begin(), a.args.end());
        for (const auto& [position, reg] : a.tensors) stack[position] = f_.tensors[reg];
        for (const ListArgument& l : a.lists) stack[l.position] = list(l);
        for (const NumberArgument& n : a.numbers) stack[n.position] = number(f_.tensors[n.reg]);
        if (a.user_visible) {
            c10::impl::ForceDispatchKeyGuard guard(*caller_);
            a.op.callBoxed(stack);
            make_current(p_.device);  // the user's code may have changed the current device
        } else {
            a.op.callBoxed(stack);
        }
        take_results(a, stack);
        stack.clear();
    }

    [[gnu::noinline]] void run_plans(size_t i) {
        const Event event = names_ ? event_of_step(names_->run_plans[i]) : nullptr;
        const RunPlans& r = p_.run_plans[i];
        std::vector<at::Tensor> operands;
        operands.reserve(r.operands.size());
        for (Reg reg : r.operands) operands.push_back(f_.tensors[reg]);
        std::vector<at::Tensor> results =
            run_inner(r, r.condition < 0 ? at::Tensor() : f_.tensors[r.condition], std::move(operands));
        for (size_t k = 0; k < r.outs.size(); ++k) {
            const Reg reg = r.outs[k];
            if (reg < 0) continue;
            at::Tensor t =
                r.expect[k] ? with_layout(*r.expect[k], std::move(results[k])) : std::move(results[k]);
            if (p_.needs_data[reg]) f_.data[reg] = t.unsafeGetTensorImpl()->mutable_data();
            f_.tensors[reg] = std::move(t);
        }
    }

    static c10::IValue number(const at::Tensor& t) {
        if (t.scalar_type() == at::kDouble) return *t.const_data_ptr<double>();
        return *t.const_data_ptr<int64_t>();
    }

    c10::IValue list(const ListArgument& l) const {
        if (l.optional) {
            c10::List<std::optional<at::Tensor>> tensors;
            tensors.reserve(l.regs.size());
            for (Reg r : l.regs) tensors.push_back(r < 0 ? std::optional<at::Tensor>() : f_.tensors[r]);
            return tensors;
        }
        c10::List<at::Tensor> tensors;
        tensors.reserve(l.regs.size());
        for (Reg r : l.regs) tensors.push_back(f_.tensors[r]);
        return tensors;
    }

    void take_results(const Aten& a, torch::jit::Stack& stack) {
        size_t i = 0;
        auto take = [&](at::Tensor t) {
            if (i < a.outs.size() && a.outs[i] >= 0) set_result(a, i, std::move(t));
            ++i;
        };
        for (c10::IValue& value : stack) {
            if (value.isTensor()) {
                take(std::move(value).toTensor());
            } else if (value.isTensorList()) {
                for (const at::Tensor& t : value.toTensorVector()) take(t);
            } else {
                ++i;
            }
        }
    }

    void set_result(const Aten& a, size_t i, at::Tensor t) {
        // The planner reuses arena memory: a result that shares it contrary to its schema is cloned.
        if (!a.aliases && f_.owns(t)) t = t.clone();
        if (a.expect[i]) t = conform(a, *a.expect[i], std::move(t));
        const Reg reg = a.outs[i];
        if (p_.needs_data[reg]) f_.data[reg] = t.unsafeGetTensorImpl()->mutable_data();
        f_.tensors[reg] = std::move(t);
    }

    static std::string disagreement(const Aten& a, const Layout& want, const at::Tensor& t) {
        return "smelt: " + c10::toString(a.op.operator_name()) + " returned " +
               (t.defined() ? described(t.scalar_type(), t.sizes()) : "no tensor") + ", but " +
               described(want.dtype, want.shape) +
               " was seen when the graph was captured. Its fake (meta) implementation disagrees with the "
               "real one.";
    }

    // Kernels address memory with the strides that the trace predicted; an operator may return others, because it
    // selects a library at run time.
    at::Tensor conform(const Aten& a, const Layout& want, at::Tensor t) const {
        TORCH_CHECK(want.describes(t), disagreement(a, want, t));
        return want.has_strides_of(t) ? t : want.copy_of(t);
    }

    const Program& p_;
    RegisterFile& f_;
    const Names* names_;                                    // null: no profiler is active
    const Queue queue_;                                     // of the program's device
    std::optional<c10::impl::LocalDispatchKeySet> caller_;  // set if a step needs it
};

}  // namespace

namespace {

void write_back(const Realigned& r) {
    const BelowAutograd beneath;
    r.memory.copy_(r.copy);
}

}  // namespace

void run(const Program& program, BorrowedRegisters& registers, const std::vector<Step>& steps,
         const Names* names) {
    Run(program, registers, names)(steps);
    for (const Realigned& r : (*registers).realigned)
        if (r.written) write_back(r);
}

}  // namespace smelt::plan
