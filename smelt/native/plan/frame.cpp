#include "plan/frame.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>

namespace smelt::plan {
namespace {

std::unique_ptr<Frame> make_frame(const Program& p) {
    // Arena tensors are ordinary ones, whatever mode the first caller is in.
    c10::InferenceMode ordinary(false);
    auto frame = std::make_unique<Frame>();
    frame->tensors.resize(p.n_registers);
    frame->data.resize(p.n_registers, nullptr);
    for (size_t i = 0; i < p.constants.size(); ++i) frame->tensors[p.n_inputs + i] = p.constants[i];
    if (p.arena_bytes == 0) return frame;
    frame->bytes = p.arena_bytes;
    frame->arena = std::make_shared<c10::DataPtr>(c10::GetCPUAllocator()->allocate(p.arena_bytes));
    for (const Step& s : p.steps) {
        if (s.kind == Kind::alloc && p.allocs[s.index].arena >= 0) {
            const Alloc& a = p.allocs[s.index];
            frame->tensors[a.out] = arena_tensor(a, frame->arena);
            frame->data[a.out] = static_cast<char*>(frame->arena->get()) + a.arena;
        } else if (s.kind == Kind::view && p.views[s.index].in_arena) {
            const View& v = p.views[s.index];
            frame->tensors[v.out] = raw_view(v, frame->tensors[v.src]);
            frame->data[v.out] =
                static_cast<char*>(frame->data[v.src]) + v.offset * frame->tensors[v.out].element_size();
        }
    }
    return frame;
}

}  // namespace

Place current_place(const Program& program) {
    if (program.device.is_cpu()) return {program.device, 0};
    const c10::impl::VirtualGuardImpl device(program.device.type());
    return {program.device, device.getStream(program.device).id()};
}

std::unique_ptr<Frame> IdleFrames::take(const Place& place) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = frames_.begin(); it != frames_.end(); ++it) {
        if (!(it->first == place)) continue;
        auto frame = std::move(it->second);
        frames_.erase(it);
        return frame;
    }
    return nullptr;
}

void IdleFrames::give(const Place& place, std::unique_ptr<Frame> frame) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& kept : frames_)
        if (kept.first == place) return;
    frames_.emplace_back(place, std::move(frame));
}

size_t IdleFrames::drop() {
    decltype(frames_) frames;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        frames.swap(frames_);
    }
    size_t bytes = 0;
    for (const auto& kept : frames) bytes += kept.second->bytes;
    return bytes;
}

size_t IdleFrames::bytes() {
    std::lock_guard<std::mutex> lock(mutex_);
    size_t bytes = 0;
    for (const auto& kept : frames_) bytes += kept.second->bytes;
    return bytes;
}

Borrowed::Borrowed(const Program& program, IdleFrames& idle)
    : program_(program), idle_(idle), place_(current_place(program)), frame_(idle.take(place_)) {
    if (!frame_) frame_ = make_frame(program);
}

Borrowed::~Borrowed() {
    for (Reg r : program_.dynamic) frame_->tensors[r].reset();
    frame_->stack.clear();
    idle_.give(place_, std::move(frame_));
}

}  // namespace smelt::plan
