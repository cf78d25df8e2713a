// Stamps of memory words, which tell whether the result of a guard pass is still valid.
//
// A stamp is the address of a memory word and the value that it had: the version word of a dictionary, the dictionary
// pointer of an instance, a class pointer, a length. While all stamps of a subtree match, another pass over it would
// read the same objects and find the same facts, so the pass can be skipped (memoized_guards.h).
//
// Invariants:
//   - Stamps are compared in the order in which they were taken, which is the order in which the objects were reached:
//     the stamps before one have proved that its word is still valid memory.
//   - Reused memory does not match by accident: dictionary words never repeat a value, and a pointer is only stamped if
//     the tree keeps its object alive, or knows that it is alive, or also stamps a dictionary word.
#pragma once
#include "cpython.h"
#include "dict_version.h"

#include <unordered_map>
#include <utility>
#include <vector>

namespace smelt::guards {

struct Stamp {
    const uint64_t* word;
    uint64_t expected;
    bool agrees() const { return *word == expected; }
};

class Stamps {
  public:
    // A word that changed this often is volatile: every pass checks what depends on it.
    static constexpr int kVolatile = 3;

    // Returns false if the word is volatile.
    bool take(const void* address) {
        auto* word = static_cast<const uint64_t*>(address);
        if (!taken_.emplace(word, *word).second) return true;
        auto before = previous_.find(word);
        if (before != previous_.end() && before->second != *word) changes_[word]++;
        list_.push_back({word, *word});
        auto change = changes_.find(word);
        return change == changes_.end() || change->second < kVolatile;
    }
    bool take_dict(PyObject* dict) {
        const uint64_t* word = dict_change_word(dict);
        return word && take(word);
    }
    bool take_type(PyObject* x) { return take(&x->ob_type); }
    bool take_size(PyObject* x) { return take(&reinterpret_cast<PyVarObject*>(x)->ob_size); }

    // Stamps which dictionary an instance has, and its contents. Returns false if attributes are stored without a
    // dictionary.
    bool take_instance(PyObject* x) {
        InstanceAttributes at = instance_attributes(x);
        if (at.values) return false;
        PyObject** slot = _PyObject_GetDictPtr(x);
        if (!slot) return true;  // instances of its class have no dictionary
        return take(slot) && (!at.dict || take_dict(at.dict));
    }
    // The same for an object that may be a class.
    bool take_attributes(PyObject* x) {
        if (!PyType_Check(x)) return take_instance(x);
        PyObject* dict = type_dict(x);
        return dict && take_dict(dict);
    }

    const std::vector<Stamp>& list() const { return list_; }
    size_t size() const { return list_.size(); }
    // Removes the stamps after the first `size`.
    void shrink(size_t size) {
        for (; list_.size() > size; list_.pop_back()) taken_.erase(list_.back().word);
    }
    // Starts over, and remembers the previous values of words.
    void restart() {
        previous_ = std::exchange(taken_, {});
        list_.clear();
    }
    void reset_changes() { changes_.clear(); }

  private:
    using Words = std::unordered_map<const uint64_t*, uint64_t>;
    std::vector<Stamp> list_;  // in the order taken
    Words taken_, previous_;
    std::unordered_map<const uint64_t*, int> changes_;
};

}  // namespace smelt::guards
