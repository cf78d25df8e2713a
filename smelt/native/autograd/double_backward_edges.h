// Redirection of double-backward edges: from results of the recomputed forward to the outputs that the program holds.
#pragma once
#include <unordered_set>
#include <utility>
#include <vector>

#include "autograd/backward_group.h"

namespace smelt::autograd {

// Pairs of edges: to the history of a result of the recomputed forward, and to the history of the original output.
using Routes = std::vector<std::pair<Edge, Edge>>;

// Redirects the edges of `gradients`, and of the graph behind them up to `ends`, along `routes`. A node that saves
// such a result creates more edges to it when it is differentiated itself; these are redirected at that time.
// `of_views`: the routes that start at a view which is the only output of its node; nothing else needs that node
// afterwards.
void reroute(variable_list& gradients, const Routes& routes, const Routes& of_views,
             const std::unordered_set<const Node*>& ends);

}  // namespace smelt::autograd
