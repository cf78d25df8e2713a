// The steps of a plan, as the executor reads them (smelt/plan/steps.py describes each). A program is immutable after
// it was read.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tensor_layout.h"
#include "torch_operators.h"

namespace smelt::plan {

using Reg = int32_t;  // -1: none

constexpr size_t kFewRegisters = 8;

struct Alloc {
    Reg out;
    Layout layout;
    c10::Device device;
    int64_t arena;  // byte offset; -1: memory of its own
    Reg over;       // with memory of its own: reuses that of this register if it has no other owner
    size_t nbytes;
    bool contiguous;
    c10::DispatchKeySet keys;  // of the tensor
};

struct View {
    Reg out, src;
    std::vector<int64_t> shape, stride;
    int64_t offset;  // elements
    bool user_visible;
    bool in_arena;  // created with the register file
};

class Launcher;

struct Launch {
    const Launcher* launcher;
    void* function;  // of the launcher's own type
    std::vector<Reg> regs;
    int64_t extent, grain, blocks;  // blocks: of `grain` items, on a GPU
    std::vector<int64_t> sizes;     // passed to the code after the addresses
    // On a GPU: threads per block, bytes of shared memory, the maximum of launches in a batched launch (0: not for
    // batched launches); per register the bytes of a number that is passed by value (0: the address is passed).
    unsigned threads = 0, shared = 0, parts = 0;
    std::vector<uint8_t> by_value = {};
    c10::DeviceIndex elsewhere = -1;  // another GPU than the program's
};

constexpr size_t kTableSlots = 500;  // the maximum for a batched launch on a GPU

// A batched launch of independent kernels: on a CPU the threads share their work, on a GPU it is one launch.
struct BatchedLaunch {
    size_t first, count;        // of Program::launches
    std::vector<int64_t> ends;  // cumulative work of the launches
    int64_t grain;
};

struct NumberArgument {  // a register with a number, where the operator takes no tensor
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
    std::vector<c10::IValue> args;                // None for registers
    std::vector<std::pair<size_t, Reg>> tensors;  // position, register
    std::vector<ListArgument> lists;
    std::vector<NumberArgument> numbers;
    std::vector<Reg> outs;
    std::vector<std::optional<Layout>>
        expect;  // per output: the layout that kernels with its pointer rely on
    bool user_visible;
    bool aliases;  // according to the schema a result shares memory with an argument
};

struct Plan;
struct SizedProgram;

// A higher-order operator. `cond`: the first plan runs if the condition holds, else the second. `loop`: the second runs while
// the first returns true; the first `carried` operands are the values that change. `recorded_loop`: its last result is a
// `LoopHistory`. `loop_backward`: the plans run for the steps in reverse order, the last plan for all that remain. Operands: the
// first `tangents` are those of the loop's results, then the operands of the loop; `condition` is the history. The plans return
// the next tangents, then what is added to the gradients of other operands.
struct RunPlans {
    enum class Rule { cond, loop, recorded_loop, loop_backward };
    struct Inner {
        std::shared_ptr<Plan> plan;                 // null: `sized` makes one for the sizes of a program
        std::shared_ptr<const SizedProgram> sized;  // null: the plan has fixed sizes
        std::vector<size_t> takes;                  // operands
    };
    Rule rule;
    size_t carried;
    size_t tangents;
    std::vector<Inner> plans;
    Reg condition;  // -1: of a loop
    std::vector<Reg> operands;
    std::vector<Layout> layouts;  // of the operands, on which the plans rely
    std::vector<Reg> outs;
    std::vector<std::optional<Layout>> expect;  // as of Aten
};

struct Registers {
    std::vector<Reg> regs;
};

enum class Kind : uint8_t { alloc, view, launch, parallel_launch, aten, run_plans, free, bump };

struct Step {
    Kind kind;
    uint32_t index;  // into the vector of its kind
};

// Names of profiler events: of the graph, and of steps by index into the vector of their kind.
struct Names {
    std::string graph;
    std::vector<std::string> launches, batched_launches, atens, run_plans;
};

struct Program {
    size_t n_inputs = 0, n_registers = 0, arena_bytes = 0;
    std::vector<at::Tensor> constants;
    std::vector<Step> steps, owning_steps;  // owning_steps also free inputs
    std::vector<Alloc> allocs;
    std::vector<View> views;
    std::vector<Launch> launches;
    std::vector<BatchedLaunch> batched_launches;
    std::vector<Aten> atens;
    std::vector<RunPlans> run_plans;
    std::vector<Registers> frees, bumps;
    std::vector<Reg> outputs;
    std::shared_ptr<const Names> names;  // shared by the programs of one template
    bool release_gil = false;
    bool dispatches = false;         // a step uses torch's dispatcher
    bool has_own_registers = false;  // per call: there are few registers, all empty between calls
    c10::Device device = c10::kCPU;  // of kernels, and of temporaries in the arena
    // Per register, see `derive`:
    std::vector<char> needs_tensor, needs_data, in_arena, written;
    std::vector<char> is_number, is_read;  // per input; is_read: a step reads it, or it is returned
    std::vector<Reg> dynamic;              // cleared after a call
    std::vector<char> is_last;  // per output: neither a later output nor a later call needs its register

    bool is_input(Reg r) const { return r >= 0 && static_cast<size_t>(r) < n_inputs; }
};

// Derives facts from the steps: which registers are needed as tensors, which as addresses, which are cleared.
void derive(Program& program);

// Bytes that the program costs for as long as it exists, about. Constants, which instances of a template share, are not
// counted. On a CPU an eighth of the memory of a call is: where sizes grow, the C library leaves holes between programs that
// later calls do not fit in (all of a call's memory was measured, for 4,000 sizes in turn).
size_t bytes_of(const Program& program);

// Which inputs the steps write, directly or through views.
std::vector<char> written_inputs(const Program& program);

}  // namespace smelt::plan
