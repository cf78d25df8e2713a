// The registers of one call.
//
// A call borrows a `RegisterFile`: the registers, with all tensors in the arena created beforehand, so that a call
// allocates only what it returns. A register file belongs to one call at a time; idle ones are pooled. Invariant
// between calls: the dynamic registers are empty. If a program has no arena and few registers, each call creates a
// register file, which takes less time than a search in the pool.
//
// On a CPU the arena stays with its register file: fresh pages are slow. On other devices each call allocates it from
// torch's allocator before its first temporary, and frees it at the end, so that plans do not withhold memory from
// each other or from the user. That allocator caches memory, so the arena mostly gets the same address, and its
// tensors stay valid.
#pragma once
#include <c10/core/Stream.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "plan/arena_budget.h"
#include "plan/tensor_allocation.h"
#include "plan/program.h"
#include "torch.h"

namespace smelt::plan {

// An input whose address is not a multiple of `kVector`, as GPU kernels require, and the aligned copy for them.
struct Realigned {
    at::Tensor memory, copy;  // 1-d: all from the first to the last element
    bool written;
};

struct RegisterFile {
    explicit RegisterFile(const Program& program);

    Arena arena;
    void* built_at = nullptr;  // the arena's address when its tensors were created or moved
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

// Allocates the arena of a register file.
void take_arena(const Program& program, RegisterFile& registers);

// A device's stream. Kernels that a call started may still read its register file after the call, so only calls on
// the same stream may reuse it.
struct StreamKey {
    c10::Device device;
    c10::StreamId stream;
    void* handle;  // the driver's handle of the stream

    bool operator==(const StreamKey& other) const { return device == other.device && stream == other.stream; }
};

// The current stream of this thread.
StreamKey current_stream_of(c10::Device device);

// The pool of idle register files, at most one per stream. Thread-safe.
class IdleRegisterFiles {
  public:
    using Files = std::vector<std::pair<StreamKey, std::unique_ptr<RegisterFile>>>;

    IdleRegisterFiles() = default;
    ~IdleRegisterFiles();
    IdleRegisterFiles(const IdleRegisterFiles&) = delete;
    IdleRegisterFiles& operator=(const IdleRegisterFiles&) = delete;

    std::unique_ptr<RegisterFile> take(const StreamKey& stream);  // nullptr: none
    void give(const StreamKey& stream, std::unique_ptr<RegisterFile> registers);
    size_t drop();  // frees them; returns the bytes of their arenas
    size_t bytes();
    Files take_all();

    // Call it once, before the plan, whose program has `program_bytes`, runs.
    void set_budget(std::shared_ptr<ArenaBudget> budget, size_t program_bytes);

  private:
    std::mutex mutex_;
    Files idle_;
    std::shared_ptr<ArenaBudget> budget_;
    size_t program_bytes_ = 0;
};

// A register file for one call.
class BorrowedRegisters {
  public:
    BorrowedRegisters(const Program& program, IdleRegisterFiles& idle);
    ~BorrowedRegisters();
    BorrowedRegisters(const BorrowedRegisters&) = delete;
    BorrowedRegisters& operator=(const BorrowedRegisters&) = delete;
    RegisterFile& operator*() { return *registers_; }
    const StreamKey& stream() const { return stream_; }

  private:
    const Program& program_;
    IdleRegisterFiles& idle_;
    const OnDevice current_;  // the program's
    const StreamKey stream_;
    std::optional<RegisterFile> own_;
    std::unique_ptr<RegisterFile> pooled_;  // unless the call has its own
    RegisterFile* registers_;
};

}  // namespace smelt::plan
