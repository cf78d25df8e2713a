// Executes the steps of a program on a register file.
#pragma once
#include <vector>

#include "plan/registers.h"
#include "plan/program.h"

namespace smelt::plan {

// `steps`: the program's steps, or those that also free inputs. Throws what operators throw.
//
// Dispatch: steps run below autograd, ADInplaceOrView and autocast, as the trace was recorded. Steps marked
// `user_visible` run with the caller's dispatch state, as if the user's eager code had made the call.
//
// `names`: the names of the steps' profiler events; null: no profiler is active.
void run(const Program& program, BorrowedRegisters& registers, const std::vector<Step>& steps,
         const Names* names);

}  // namespace smelt::plan
