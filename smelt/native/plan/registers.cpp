#include "plan/registers.h"

#include <c10/core/InferenceMode.h>

#include "torch.h"

namespace smelt::plan {
namespace {

// Creates the tensors of the arena, or moves them to its current address.
void build_arena_tensors(const Program& p, RegisterFile& f) {
    c10::InferenceMode ordinary(false);  // for these tensors, whatever mode the first caller is in
    const bool built = f.built_at != nullptr;
    f.built_at = f.arena->get();
    for (const Step& s : p.steps) {
        if (s.kind == Kind::alloc && p.allocs[s.index].arena >= 0) {
            const Alloc& a = p.allocs[s.index];
            if (built)
                move_to_arena(f.tensors[a.out], a, f.arena);
            else
                f.tensors[a.out] = arena_tensor(a, f.arena);
            f.data[a.out] = static_cast<char*>(f.built_at) + a.arena;
        } else if (s.kind == Kind::view && p.views[s.index].in_arena) {
            const View& v = p.views[s.index];
            if (!built) f.tensors[v.out] = raw_view(v, f.tensors[v.src]);
            f.data[v.out] = static_cast<char*>(f.data[v.src]) + v.offset * f.tensors[v.out].element_size();
        }
    }
}

void return_arena(const Program& p, RegisterFile& f) {
    if (p.device.is_cpu()) return;
    f.arena.reset();
    f.bytes = 0;
}

}  // namespace

void take_arena(const Program& p, RegisterFile& f) {
    f.bytes = p.arena_bytes;
    f.arena = make_arena(p.arena_bytes, p.device);
    if (f.arena->get() != f.built_at) build_arena_tensors(p, f);
}

RegisterFile::RegisterFile(const Program& p) : tensors(p.n_registers), data(p.n_registers, nullptr) {
    for (size_t i = 0; i < p.constants.size(); ++i) tensors[p.n_inputs + i] = p.constants[i];
}

StreamKey current_stream_of(c10::Device device) {
    if (device.is_cpu()) return {device, 0, nullptr};
    const auto* guard = c10::impl::getDeviceGuardImpl(device.type());
    const c10::Stream stream = guard->getStream(device);
    return {device, stream.id(), guard->getStreamNativeHandle(stream)};
}

std::unique_ptr<RegisterFile> IdleRegisterFiles::take(const StreamKey& stream) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = idle_.begin(); it != idle_.end(); ++it) {
        if (!(it->first == stream)) continue;
        auto registers = std::move(it->second);
        idle_.erase(it);
        return registers;
    }
    return nullptr;
}

void IdleRegisterFiles::give(const StreamKey& stream, std::unique_ptr<RegisterFile> registers) {
    const size_t bytes = registers->bytes;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        for (const auto& kept : idle_)
            if (kept.first == stream) return;
        idle_.emplace_back(stream, std::move(registers));
    }
    if (budget_ && bytes) budget_->note(this, bytes);
}

IdleRegisterFiles::Files IdleRegisterFiles::take_all() {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(idle_, {});
}

size_t IdleRegisterFiles::drop() {
    if (budget_) budget_->forget(this);
    const Files files = take_all();
    size_t bytes = 0;
    for (const auto& kept : files) bytes += kept.second->bytes;
    return bytes;
}

void IdleRegisterFiles::set_budget(std::shared_ptr<ArenaBudget> budget, size_t program_bytes) {
    if (budget_) return;
    budget_ = std::move(budget);
    program_bytes_ = program_bytes;
    budget_->count_program(program_bytes);
}

IdleRegisterFiles::~IdleRegisterFiles() {
    if (!budget_) return;
    budget_->forget(this);
    budget_->forget_program(program_bytes_);
}

size_t IdleRegisterFiles::bytes() {
    std::lock_guard<std::mutex> lock(mutex_);
    size_t bytes = 0;
    for (const auto& kept : idle_) bytes += kept.second->bytes;
    return bytes;
}

BorrowedRegisters::BorrowedRegisters(const Program& program, IdleRegisterFiles& idle)
    : program_(program), idle_(idle), current_(program.device), stream_(current_stream_of(program.device)) {
    if (program.has_own_registers) {
        registers_ = &own_.emplace(program);
        return;
    }
    pooled_ = idle.take(stream_);
    if (!pooled_) pooled_ = std::make_unique<RegisterFile>(program);
    registers_ = pooled_.get();
}

BorrowedRegisters::~BorrowedRegisters() {
    if (own_) return;
    for (Reg r : program_.dynamic) registers_->tensors[r].reset();
    registers_->stack.clear();
    registers_->realigned.clear();
    return_arena(program_, *registers_);
    idle_.give(stream_, std::move(pooled_));
}

}  // namespace smelt::plan
