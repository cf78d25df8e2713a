// Versions of dictionaries and classes: whether one has changed since it was last looked at.
//
// Up to 3.12 each dictionary has a version, which every change increments. 3.13 does not update it where an attribute
// store changes a dictionary that shares the inline values of its object (dictobject.c,
// store_instance_attr_lock_held), and 3.14 has no versions. So from 3.13 on a dict watcher observes every change and
// increments a word of ours. If the interpreter does not report such stores to watchers either (3.13.0), such
// dictionaries have no word.
#pragma once
#include "cpython.h"

namespace smelt {

#if SMELT_PY313

// A word that every change of the dictionary increments. No two dictionaries' words ever have the same value. Null,
// without an error, if the dictionary cannot be watched. Words are never freed: the dictionary may be destroyed.
const uint64_t* dict_change_word(PyObject* dict);

class DictVersion {
  public:
    bool holds(PyObject* dict) const { return dict == dict_ && *word_ == value_; }
    void set(PyObject* dict) {
        word_ = dict_change_word(dict);
        dict_ = word_ ? dict : nullptr;
        value_ = word_ ? *word_ : 0;
    }

  private:
    PyObject* dict_ = nullptr;  // borrowed, only compared
    const uint64_t* word_ = nullptr;
    uint64_t value_ = 0;
};

#else

inline const uint64_t* dict_change_word(PyObject* dict) {
    return dict_version_word(dict);
}

class DictVersion {
  public:
    bool holds(PyObject* dict) const { return *dict_change_word(dict) == value_; }
    void set(PyObject* dict) { value_ = *dict_change_word(dict); }

  private:
    uint64_t value_ = 0;
};

#endif

// The version of a class and its bases, or 0 if it has none. From 3.13 on the interpreter assigns a class at most
// 1000 versions; later ones are ours, derived from the dictionaries of its bases.
#if SMELT_PY313
constexpr unsigned int kOwnVersion = 1u << 31;  // the interpreter's versions are smaller
unsigned int own_class_version(PyTypeObject* type);
#else
constexpr unsigned int kOwnVersion = 0;
inline unsigned int own_class_version(PyTypeObject*) {
    return 0;
}
#endif

// The same, assigned now if possible.
inline unsigned int assign_class_version(PyTypeObject* type) {
    unsigned int tag = assign_type_version(type);
    return tag ? tag : own_class_version(type);
}

inline bool has_class_version(PyTypeObject* type, unsigned int version) {
    return version && (version & kOwnVersion ? own_class_version(type) : type_version_tag(type)) == version;
}

}  // namespace smelt
