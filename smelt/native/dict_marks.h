// Whether a dictionary is as it was.
//
// Up to 3.12 a dictionary has a version, which each change renews. 3.13 drops the new version where an attribute is stored
// whose dictionary shares the values inside of its object (dictobject.c, store_instance_attr_lock_held), and 3.14 has none:
// from 3.13 on a watcher is told of every change, and renews a word of ours. Where the interpreter does not tell
// it of those attributes either (3.13.0), such dictionaries have no word.
#pragma once
#include "cpython.h"

namespace smelt {

#if SMELT_PY313

// A word that every change of the dictionary renews. No word of any dictionary has a value twice. Null, without an error,
// if the dictionary cannot be watched. Words stay where they are: the dictionary may be gone.
const uint64_t* dict_word(PyObject* dict);

class DictMark {
  public:
    bool holds(PyObject* dict) const { return dict == dict_ && *word_ == value_; }
    void set(PyObject* dict) {
        word_ = dict_word(dict);
        dict_ = word_ ? dict : nullptr;
        value_ = word_ ? *word_ : 0;
    }

  private:
    PyObject* dict_ = nullptr;  // borrowed, only compared
    const uint64_t* word_ = nullptr;
    uint64_t value_ = 0;
};

#else

inline const uint64_t* dict_word(PyObject* dict) {
    return dict_version_word(dict);
}

class DictMark {
  public:
    bool holds(PyObject* dict) const { return *dict_word(dict) == value_; }
    void set(PyObject* dict) { value_ = *dict_word(dict); }

  private:
    uint64_t value_ = 0;
};

#endif

// The number of the current state of a class and its bases, or 0 if it has none. From 3.13 on the interpreter gives a class
// no more than 1000 of them; later ones are ours, and come from the dictionaries of its bases.
#if SMELT_PY313
constexpr unsigned int kOwnVersion = 1u << 31;  // the interpreter's are smaller
unsigned int own_class_version(PyTypeObject* type);
#else
constexpr unsigned int kOwnVersion = 0;
inline unsigned int own_class_version(PyTypeObject*) {
    return 0;
}
#endif

// The same; gives it one if it can have one.
inline unsigned int assign_class_version(PyTypeObject* type) {
    unsigned int tag = assign_type_version(type);
    return tag ? tag : own_class_version(type);
}

inline bool has_class_version(PyTypeObject* type, unsigned int version) {
    return version && (version & kOwnVersion ? own_class_version(type) : type_version_tag(type)) == version;
}

}  // namespace smelt
