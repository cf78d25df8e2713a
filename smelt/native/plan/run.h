// Running the steps of a program on a frame.
#pragma once
#include <vector>

#include "plan/frame.h"
#include "plan/program.h"

namespace smelt::plan {

// `steps` are the program's, or those that also free inputs. Throws what operators throw.
//
// Dispatch: steps run below autograd, ADInplaceOrView and autocast (the trace was recorded there). Those marked
// `user_visible` run with the caller's own dispatch state, as if the user's eager code had made the call.
//
// `names`: those of the events that steps are to make; null: none, nobody watches.
void run(const Program& program, Borrowed& frame, const std::vector<Step>& steps, const Names* names);

}  // namespace smelt::plan
