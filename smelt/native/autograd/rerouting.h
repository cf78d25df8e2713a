// Edges of a derivative's graph that lead to results of a second run are led to the outputs that the program holds.
#pragma once
#include <unordered_set>
#include <utility>
#include <vector>

#include "autograd/group.h"

namespace smelt::autograd {

// From where a result of a second run has its history to where the same output of the first has its.
using Routes = std::vector<std::pair<Edge, Edge>>;

// Leads `gradients`, and what they were computed from up to `ends`, along `routes`. A node that saves such a result makes
// more edges to it when it is differentiated in its turn; these are led there then. `of_views`: those of `routes` that
// start at a view of the run, the only one that its node gives; nothing else needs that node afterwards.
void reroute(variable_list& gradients, const Routes& routes, const Routes& of_views,
             const std::unordered_set<const Node*>& ends);

}  // namespace smelt::autograd
