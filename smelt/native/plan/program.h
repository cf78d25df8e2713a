// The steps of a plan, as the executor reads them (smelt/plan/steps.py says what each means). A program does not
// change once it is read.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "layout.h"
#include "torch_operators.h"

namespace smelt::plan {

using Reg = int32_t;  // -1: none

constexpr size_t kFewRegisters = 8;

struct Alloc {
    Reg out;
    Layout layout;
    c10::Device device;
    int64_t arena;  // byte offset, -1: memory of its own
    Reg over;       // with memory of its own: takes that of this register, if nobody else holds it
    size_t nbytes;
    bool contiguous;
    c10::DispatchKeySet keys;  // of the tensor
};

struct View {
    Reg out, src;
    std::vector<int64_t> shape, stride;
    int64_t offset;  // elements
    bool user_visible;
    bool in_arena;  // built with the frame
};

class Launcher;

struct Launch {
    const Launcher* launcher;
    void* function;  // as the launcher takes it
    std::vector<Reg> regs;
    int64_t extent, grain, blocks;  // blocks: of `grain` items, on a GPU
    std::vector<int64_t> sizes;     // what the code takes behind the addresses
    // On a GPU: threads of a block, its bytes of shared memory, how many launches one may do (0: it is none of a
    // ParallelLaunch); of each register the bytes of the number that is passed in place of its address (0: the address).
    unsigned threads = 0, shared = 0, parts = 0;
    std::vector<uint8_t> by_value = {};
    c10::DeviceIndex elsewhere = -1;  // the GPU, where it is not the program's
};

constexpr size_t kTableSlots = 500;  // at most, of a GPU's ParallelLaunch

// Launches that do not depend on one another: shared among a CPU's threads as one piece of work, one launch on a GPU.
struct ParallelLaunch {
    size_t first, count;        // of Program::launches
    std::vector<int64_t> ends;  // work of the launches up to and with each
    int64_t grain;
};

struct NumberArgument {  // a register that holds a number, where the operator takes no tensor
    size_t position;
    Reg reg;
};

struct ListArgument {
    size_t position;
    std::vector<Reg> regs;
    bool optional;  // Tensor?[]
};

struct Aten {
    c10::OperatorHandle op;
    std::vector<c10::IValue> args;                // None where a register goes
    std::vector<std::pair<size_t, Reg>> tensors;  // position, register
    std::vector<ListArgument> lists;
    std::vector<NumberArgument> numbers;
    std::vector<Reg> outs;
    std::vector<std::optional<Layout>> expect;  // per out: what kernels that take its pointer rely on
    bool user_visible;
    bool aliases;  // the schema says that a result shares memory with an argument
};

struct Registers {
    std::vector<Reg> regs;
};

enum class Kind : uint8_t { alloc, view, launch, together, aten, free, bump };

struct Step {
    Kind kind;
    uint32_t index;  // into the vector of its kind
};

// What events of a profiler are called: that of the graph, and those of steps, by index into the vector of their kind.
struct Names {
    std::string graph;
    std::vector<std::string> launches, togethers, atens;
};

struct Program {
    size_t n_inputs = 0, n_registers = 0, arena_bytes = 0;
    std::vector<at::Tensor> constants;
    std::vector<Step> steps, owning_steps;  // the latter also free inputs
    std::vector<Alloc> allocs;
    std::vector<View> views;
    std::vector<Launch> launches;
    std::vector<ParallelLaunch> togethers;
    std::vector<Aten> atens;
    std::vector<Registers> frees, bumps;
    std::vector<Reg> outputs;
    std::shared_ptr<const Names> names;  // programs of one template share them
    bool release_gil = false;
    bool dispatches = false;         // a step goes through torch's dispatcher
    bool keeps_no_frame = false;     // a call makes its own: few registers, all of them empty before
    c10::Device device = c10::kCPU;  // where it runs: kernels, and temporaries in the arena
    // Of registers, see `derive`:
    std::vector<char> needs_tensor, needs_data, in_arena, written;
    std::vector<char> is_number, is_read;  // of inputs; is_read: returned, or by a step
    std::vector<Reg> dynamic;              // to empty after a call
    std::vector<char> is_last;             // of outputs: no later one, and no later call, needs its register

    bool is_input(Reg r) const { return r >= 0 && static_cast<size_t>(r) < n_inputs; }
};

// What follows from the steps: which registers are needed as tensors, which as addresses, which are emptied.
void derive(Program& program);

// Which inputs steps write, themselves or through views.
std::vector<char> written_inputs(const Program& program);

}  // namespace smelt::plan
