// The registers of one call.
//
// A call borrows a `RegisterFile`: the registers, with every tensor that lives in the arena built beforehand, so that a call
// allocates only what it returns. Frames are private to a call; idle ones wait for the next call. What always holds
// between calls: a frame's dynamic registers are empty. Of a program without an arena that has few registers, each call has
// a frame of its own, which takes less time than looking for an idle one.
//
// On a CPU the arena stays with its frame: fresh pages are slow. On other devices each call takes it from torch's allocator
// where its first temporary begins, and gives it back, so that plans do not hold memory from each other or from the user; that
// allocator keeps what is given back, so the arena is mostly where it was, and its tensors stay as they are.
#pragma once
#include <c10/core/Stream.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "plan/memory.h"
#include "plan/program.h"
#include "torch.h"

namespace smelt::plan {

// An input whose address is no multiple of `kVector`, as kernels of a GPU rely on, and what they are given instead.
struct Realigned {
    at::Tensor memory, copy;  // of one dimension: all from the first to the last element
    bool written;
};

struct RegisterFile {
    explicit RegisterFile(const Program& program);

    Arena arena;
    void* built_at = nullptr;  // where the arena was when its tensors were built or moved
    c10::SmallVector<at::Tensor, kFewRegisters> tensors;  // per register
    c10::SmallVector<void*, kFewRegisters> data;          // per register, address of the first element
    std::vector<Realigned> realigned;
    torch::jit::Stack stack;

    bool owns(const at::Tensor& t) const {
        if (!arena || !t.defined() || !t.has_storage()) return false;
        auto* p = static_cast<const char*>(t.storage().data());
        auto* base = static_cast<const char*>(arena->get());
        return p >= base && p < base + bytes;
    }
    size_t bytes = 0;
};

// Memory for the temporaries of a frame that has none.
void take_arena(const Program& program, RegisterFile& frame);

// A place in the order of a device's work: a frame that a call gives back may still be read by kernels that it
// started, so only calls that are queued behind these may have it.
struct Place {
    c10::Device device;
    c10::StreamId stream;
    void* handle;  // the driver's, of the stream

    bool operator==(const Place& other) const { return device == other.device && stream == other.stream; }
};

// Where work that is started now, on this thread, runs.
Place place_on(c10::Device device);

// The frames that no call has, at most one for each place. Any thread.
class IdleRegisterFiles {
  public:
    std::unique_ptr<RegisterFile> take(const Place& place);  // nullptr: none
    void give(const Place& place, std::unique_ptr<RegisterFile> frame);
    size_t drop();  // frees them; returns the bytes of their arenas
    size_t bytes();

  private:
    std::mutex mutex_;
    std::vector<std::pair<Place, std::unique_ptr<RegisterFile>>> frames_;
};

// A frame for the length of one call.
class Borrowed {
  public:
    Borrowed(const Program& program, IdleRegisterFiles& idle);
    ~Borrowed();
    Borrowed(const Borrowed&) = delete;
    Borrowed& operator=(const Borrowed&) = delete;
    RegisterFile& operator*() { return *frame_; }
    const Place& place() const { return place_; }

  private:
    const Program& program_;
    IdleRegisterFiles& idle_;
    const OnDevice current_;  // the program's
    const Place place_;
    std::optional<RegisterFile> own_;
    std::unique_ptr<RegisterFile> kept_;  // where there is none of its own
    RegisterFile* frame_;
};

}  // namespace smelt::plan
