#include "plan/frame.h"

#include <c10/core/InferenceMode.h>

#include "torch.h"

namespace smelt::plan {
namespace {

// Builds the tensors of the arena, or moves them to where it is now.
void place_arena(const Program& p, RegisterFile& f) {
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

void give_arena(const Program& p, RegisterFile& f) {
    if (p.device.is_cpu()) return;
    f.arena.reset();
    f.bytes = 0;
}

}  // namespace

void take_arena(const Program& p, RegisterFile& f) {
    f.bytes = p.arena_bytes;
    f.arena = make_arena(p.arena_bytes, p.device);
    if (f.arena->get() != f.built_at) place_arena(p, f);
}

RegisterFile::RegisterFile(const Program& p) : tensors(p.n_registers), data(p.n_registers, nullptr) {
    for (size_t i = 0; i < p.constants.size(); ++i) tensors[p.n_inputs + i] = p.constants[i];
}

Place place_on(c10::Device device) {
    if (device.is_cpu()) return {device, 0, nullptr};
    const auto* guard = c10::impl::getDeviceGuardImpl(device.type());
    const c10::Stream stream = guard->getStream(device);
    return {device, stream.id(), guard->getStreamNativeHandle(stream)};
}

std::unique_ptr<RegisterFile> IdleRegisterFiles::take(const Place& place) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = frames_.begin(); it != frames_.end(); ++it) {
        if (!(it->first == place)) continue;
        auto frame = std::move(it->second);
        frames_.erase(it);
        return frame;
    }
    return nullptr;
}

void IdleRegisterFiles::give(const Place& place, std::unique_ptr<RegisterFile> frame) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& kept : frames_)
        if (kept.first == place) return;
    frames_.emplace_back(place, std::move(frame));
}

size_t IdleRegisterFiles::drop() {
    decltype(frames_) frames;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        frames.swap(frames_);
    }
    size_t bytes = 0;
    for (const auto& kept : frames) bytes += kept.second->bytes;
    return bytes;
}

size_t IdleRegisterFiles::bytes() {
    std::lock_guard<std::mutex> lock(mutex_);
    size_t bytes = 0;
    for (const auto& kept : frames_) bytes += kept.second->bytes;
    return bytes;
}

Borrowed::Borrowed(const Program& program, IdleRegisterFiles& idle)
    : program_(program), idle_(idle), current_(program.device), place_(place_on(program.device)) {
    if (program.keeps_no_frame) {
        frame_ = &own_.emplace(program);
        return;
    }
    kept_ = idle.take(place_);
    if (!kept_) kept_ = std::make_unique<RegisterFile>(program);
    frame_ = kept_.get();
}

Borrowed::~Borrowed() {
    if (own_) return;
    for (Reg r : program_.dynamic) frame_->tensors[r].reset();
    frame_->stack.clear();
    frame_->realigned.clear();
    give_arena(program_, *frame_);
    idle_.give(place_, std::move(kept_));
}

}  // namespace smelt::plan
