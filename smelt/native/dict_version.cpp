#include "dict_version.h"

#if SMELT_PY313

#include <deque>
#include <unordered_map>
#include <vector>

namespace smelt {
namespace {

// A dictionary that changes this often is not worth the callbacks: it is unwatched until its word is requested again.
constexpr int kRestless = 1000;

struct Watched {
    uint64_t* word;
    int changes = 0;
};

struct Words {
    std::deque<uint64_t> all;  // never freed
    std::vector<uint64_t*> unused;
    std::unordered_map<PyObject*, Watched> watched;
    uint64_t last = 0;

    uint64_t* take() {
        if (unused.empty()) return &all.emplace_back(++last);
        uint64_t* word = unused.back();
        unused.pop_back();
        *word = ++last;
        return word;
    }
};

Words& words() {
    static Words& made = *new Words;  // dictionaries are destroyed after `main` ends
    return made;
}

int watcher = -1;

int on_change(PyDict_WatchEvent event, PyObject* dict, PyObject*, PyObject*) {
    Words& w = words();
    auto found = w.watched.find(dict);
    if (found == w.watched.end()) return 0;
    Watched& it = found->second;
    *it.word = ++w.last;
    bool gone = event == PyDict_EVENT_DEALLOCATED;
    if (!gone && ++it.changes < kRestless) return 0;
    w.unused.push_back(it.word);
    w.watched.erase(found);
    return gone ? 0 : PyDict_Unwatch(watcher, dict);
}

const uint64_t* word_of(PyObject* dict) {
    Words& w = words();
    auto found = w.watched.find(dict);
    if (found != w.watched.end()) return found->second.word;
    if (watcher < 0) watcher = PyDict_AddWatcher(on_change);
    if (watcher < 0 || PyDict_Watch(watcher, dict) < 0) {
        PyErr_Clear();
        return nullptr;
    }
    uint64_t* word = w.take();
    w.watched.emplace(dict, Watched{word});
    return word;
}

// Whether a watcher observes `x.name = value` if the dictionary shares the inline values of `x`: 3.13.0 does not call
// it.
bool hears_of_shared() {
    auto* base = reinterpret_cast<PyObject*>(&PyBaseObject_Type);
    auto* meta = reinterpret_cast<PyObject*>(&PyType_Type);
    PyObject* cls = PyObject_CallFunction(meta, "s(O){}", "Probe", base);
    PyObject* x = cls ? PyObject_CallNoArgs(cls) : nullptr;
    PyObject* dict = nullptr;
    bool hears = false;
    if (x && PyObject_SetAttrString(x, "name", Py_None) == 0 &&
        (dict = PyObject_GenericGetDict(x, nullptr))) {
        const uint64_t* word = word_of(dict);
        uint64_t before = word ? *word : 0;
        hears = word && PyObject_SetAttrString(x, "name", Py_True) == 0 && *word != before;
    }
    PyErr_Clear();
    Py_XDECREF(dict);
    Py_XDECREF(x);
    Py_XDECREF(cls);
    return hears;
}

}  // namespace

const uint64_t* dict_change_word(PyObject* dict) {
    static bool hears = hears_of_shared();
    return hears || !shares_values(dict) ? word_of(dict) : nullptr;
}

unsigned int own_class_version(PyTypeObject* type) {
    struct State {
        std::vector<DictVersion> marks;  // of the dictionaries of its bases, in MRO order
        unsigned int version = 0;
    };
    static auto& states = *new std::unordered_map<PyTypeObject*, State>;
    static unsigned int last = kOwnVersion;
    PyObject* bases = type->tp_mro;
    if (!bases) return 0;
    auto count = static_cast<size_t>(PyTuple_GET_SIZE(bases));
    State& state = states[type];
    bool same = state.marks.size() == count;
    for (size_t i = 0; same && i < count; i++)
        same = state.marks[i].holds(type_dict(PyTuple_GET_ITEM(bases, i)));
    if (same) return state.version;
    state.marks.assign(count, {});
    for (size_t i = 0; i < count; i++) {
        PyObject* dict = type_dict(PyTuple_GET_ITEM(bases, i));
        if (dict) state.marks[i].set(dict);
        if (!dict || !state.marks[i].holds(dict)) state.marks.clear();
        if (state.marks.empty()) return 0;
    }
    return state.version = ++last;
}

}  // namespace smelt

#endif
