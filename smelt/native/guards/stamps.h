// Words of memory that tell whether what a guard pass found still holds.
//
// A stamp is the address of a word and the value that it had: the word of a dictionary, the dictionary pointer of
// an instance, a class pointer, a length. While all stamps of a part of the tree agree, another pass over that part
// would read the same objects and find the same facts, so it need not be made (memo.h).
//
// What always holds:
//   - Stamps are compared in the order in which they were taken, which is the order in which the objects were reached:
//     those before a stamp have shown that its word is still there.
//   - Memory that is used again does not deceive them: words of dictionaries never have a value twice, and a pointer is
//     taken only if the tree keeps its object alive, or knows that it lives, or a dictionary's word stands beside it.
#pragma once
#include "cpython.h"
#include "dict_marks.h"

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
    // A word that was met changed this often is restless: what depends on it is looked at in every pass.
    static constexpr int kRestless = 3;

    // False if the word is restless.
    bool take(const void* address) {
        auto* word = static_cast<const uint64_t*>(address);
        if (!taken_.emplace(word, *word).second) return true;
        auto before = previous_.find(word);
        if (before != previous_.end() && before->second != *word) changes_[word]++;
        list_.push_back({word, *word});
        auto change = changes_.find(word);
        return change == changes_.end() || change->second < kRestless;
    }
    bool take_dict(PyObject* dict) {
        const uint64_t* word = dict_word(dict);
        return word && take(word);
    }
    bool take_type(PyObject* x) { return take(&x->ob_type); }
    bool take_size(PyObject* x) { return take(&reinterpret_cast<PyVarObject*>(x)->ob_size); }

    // Which dictionary an instance has, and what is in it. False where attributes are kept without a dictionary.
    bool take_instance(PyObject* x) {
        InstanceAttributes at = instance_attributes(x);
        if (at.values) return false;
        PyObject** place = _PyObject_GetDictPtr(x);
        if (!place) return true;  // objects of its class have none
        return take(place) && (!at.dict || take_dict(at.dict));
    }
    // The same of what may be a class.
    bool take_attributes(PyObject* x) {
        if (!PyType_Check(x)) return take_instance(x);
        PyObject* dict = type_dict(x);
        return dict && take_dict(dict);
    }

    const std::vector<Stamp>& list() const { return list_; }
    size_t size() const { return list_.size(); }
    // Forgets the stamps taken since there were `size`.
    void shrink(size_t size) {
        for (; list_.size() > size; list_.pop_back()) taken_.erase(list_.back().word);
    }
    // Begins anew, and remembers how words were.
    void restart() {
        previous_ = std::exchange(taken_, {});
        list_.clear();
    }
    void forgive() { changes_.clear(); }

  private:
    using Words = std::unordered_map<const uint64_t*, uint64_t>;
    std::vector<Stamp> list_;  // in the order taken
    Words taken_, previous_;
    std::unordered_map<const uint64_t*, int> changes_;
};

}  // namespace smelt::guards
