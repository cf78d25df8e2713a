#include "autograd/node_spec.h"

#include <algorithm>
#include <queue>

namespace smelt::autograd {

size_t count_defined(const Mask& mask) {
    size_t n = 0;
    for (char defined : mask) n += defined;
    return n;
}

bool intersect(const Mask& a, const Mask& b) {
    for (size_t k = 0; k < a.size(); ++k)
        if (a[k] && b[k]) return true;
    return false;
}

variable_list Spec::differentiate_again(const DoubleBackwardInputs&, const variable_list&,
                                        const variable_list&, const variable_list&) const {
    return {};  // not called: `has_double_backward` is false
}

at::Tensor Spec::substitute(size_t, const std::vector<bool>&) const {
    return {};
}

void Spec::delete_backwards() {
    for (Backward* b = backwards.exchange(nullptr); b;) {
        Backward* next = b->next;
        delete b;
        b = next;
    }
}

namespace {

// The order in which to pass `edges` to the engine. The first edges lead to leaves, in the order in which their
// gradients must be accumulated. In the engine's ready queue, a heap, all accumulations have equal priority,
// before all other nodes; an equal heap here predicts the order in which the engine pops them.
std::vector<size_t> as_pushed(const std::vector<size_t>& edges, size_t n_leaves) {
    struct Item {
        bool is_leaf;
        size_t position;
    };
    const auto comes_after = [](const Item& a, const Item& b) { return a.is_leaf < b.is_leaf; };
    std::priority_queue<Item, std::vector<Item>, decltype(comes_after)> queue(comes_after);
    for (size_t i = 0; i < edges.size(); ++i) queue.push({edges[i] < n_leaves, i});
    std::vector<size_t> pushed = edges;
    for (size_t i = 0; i < edges.size() && edges[i] < n_leaves; ++i) {
        pushed[queue.top().position] = edges[i];
        queue.pop();
    }
    return pushed;
}

// The entry with this mask, created if there is none.
template <class T>
T& entry(std::vector<T>& entries, Mask T::* key, const Mask& mask) {
    for (T& e : entries)
        if (e.*key == mask) return e;
    entries.emplace_back();
    entries.back().*key = mask;
    return entries.back();
}

}  // namespace

void Spec::add_saved(SavedSource source) {
    if (source.kind == SavedSource::Kind::alias) {
        const auto primal = std::find_if(saved.begin(), saved.end(), [&](const SavedSource& s) {
            return s.kind == SavedSource::Kind::primal && s.index == source.index;
        });
        if (primal != saved.end()) source.primal = static_cast<size_t>(primal - saved.begin());
    }
    if (source.kind == SavedSource::Kind::temporary)
        n_results = std::max(n_results, n_outputs + source.index + 1);
    saved.push_back(std::move(source));
}

void Spec::add_group(NodeSpec group, const std::vector<Mask>& contributors) {
    Mask own(tangents.size());
    for (size_t k : group.tangents) own[k] = 1;
    auto within = [&](Mask mask) {
        for (size_t k = 0; k < mask.size(); ++k) mask[k] &= own[k];
        return mask;
    };
    for (size_t i = 0; i < contributors.size(); ++i)
        if (const Mask mask = within(contributors[i]); count_defined(mask))
            entry(group.ends, &End::tangents, mask).edges.push_back(i);
    for (End& end : group.ends) end.edges = as_pushed(end.edges, n_leaves);
    if (group.is_single() && group.ends.empty()) group.ends.push_back({own, {}});
    for (size_t i = 0; i < saved.size(); ++i) {
        const Mask& readers = saved[i].readers;
        if (const Mask mask = readers.empty() ? own : within(readers); count_defined(mask))
            entry(group.buckets, &Bucket::readers, mask).saved.push_back(i);
    }
    for (Bucket& bucket : group.buckets) {
        bucket.first = group.n_saved;
        group.n_saved += bucket.saved.size();
    }
    groups.push_back(std::move(group));
}

}  // namespace smelt::autograd
