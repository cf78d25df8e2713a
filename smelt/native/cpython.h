// Differences between CPython versions, and data that is read by memory layout because no exported function provides
// it cheaply. cpython_sets.cpp and cpython_iterators.cpp read sets and iterators; no other file has such layouts
// (tests/test_native_layers.py).
//
// All functions need the GIL. To support another version, go through each `SMELT_PY31x` and through the layouts
// (layout_probes.cpp tries them at import); an unknown version must not compile. Include this file before any other
// that includes Python.h: it enables the interpreter's internal headers.
#pragma once

#ifndef Py_BUILD_CORE
#define Py_BUILD_CORE 1
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifdef Py_GIL_DISABLED
#error "smelt needs the GIL; free-threaded builds are not supported"
#endif
#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030F0000
#error "smelt knows the interpreter structures of CPython 3.11, 3.12, 3.13 and 3.14 only"
#endif
#define SMELT_PY312 (PY_VERSION_HEX >= 0x030C0000)
#define SMELT_PY313 (PY_VERSION_HEX >= 0x030D0000)
#define SMELT_PY314 (PY_VERSION_HEX >= 0x030E0000)

#undef _PyGC_FINALIZED  // 3.12: pycore_gc.h defines it again
#undef HAVE_STD_ATOMIC  // pycore_atomic.h: take compiler builtins; C11's <stdatomic.h> is not C++
#include <internal/pycore_code.h>
#include <internal/pycore_dict.h>
#include <internal/pycore_frame.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_object.h>
#if SMELT_PY313
#include <internal/pycore_ceval.h>
#include <internal/pycore_setobject.h>
#endif
#if SMELT_PY314
#include <internal/pycore_interpframe.h>
#endif

#include <cstddef>
#include <cstdint>

namespace smelt {

// ------------------------------------------------------------------------------------------------ monitoring

// Whether a tool of sys.monitoring other than sys.settrace, which is per thread, asks for lines. Debuggers and coverage
// tools may ask for those of single functions, when these begin.
inline bool lines_are_monitored([[maybe_unused]] PyThreadState* thread) {
#if SMELT_PY312
    constexpr uint8_t kOthers = uint8_t(~(1 << PY_MONITORING_SYS_TRACE_ID));  // one bit per tool
    constexpr uint8_t kByFunction = 1 << PY_MONITORING_DEBUGGER_ID | 1 << PY_MONITORING_COVERAGE_ID;
    const uint8_t* tools = thread->interp->monitors.tools;
    return (tools[PY_MONITORING_EVENT_LINE] | tools[PY_MONITORING_EVENT_INSTRUCTION]) & kOthers ||
           tools[PY_MONITORING_EVENT_PY_START] & kByFunction;
#else
    return false;
#endif
}

// ---------------------------------------------------------------------------------------------------- frames

using Frame = _PyInterpreterFrame;

inline PyCodeObject* frame_code(Frame* frame) {
#if SMELT_PY313
    return _PyFrame_GetCode(frame);
#else
    return frame->f_code;
#endif
}

inline PyFunctionObject* frame_function(Frame* frame) {
#if SMELT_PY314
    return _PyFrame_GetFunction(frame);
#elif SMELT_PY312
    return reinterpret_cast<PyFunctionObject*>(frame->f_funcobj);
#else
    return frame->f_func;
#endif
}

// The object in a slot of a frame, borrowed, or null. From 3.14 on the frame itself may have borrowed it.
inline PyObject* frame_slot(Frame* frame, Py_ssize_t slot) {
#if SMELT_PY314
    _PyStackRef value = frame->localsplus[slot];
    return PyStackRef_IsNull(value) ? nullptr : PyStackRef_AsPyObjectBorrow(value);
#else
    return frame->localsplus[slot];
#endif
}

// Whether the frame is not that of a generator that has started.
inline bool is_on_thread(Frame* frame) {
    return frame->owner == FRAME_OWNED_BY_THREAD;
}

// The namespace dictionary of a module body, class body or exec'd code; null for a function.
inline PyObject* frame_names(Frame* frame) {
    return frame->f_locals;
}

// The current Python frame of a thread.
inline Frame* current_frame(PyThreadState* thread) {
#if SMELT_PY313
    return thread->current_frame;
#else
    return thread->cframe->current_frame;
#endif
}

inline Py_ssize_t code_size(PyCodeObject* code) {  // in bytes
    return _PyCode_NBYTES(code);
}

// The byte offset at which tracebacks show a frame. The interpreter resumes at another location, which it holds in a
// register.
inline Py_ssize_t shown_at(Frame* frame) {
#if SMELT_PY313
    _Py_CODEUNIT* at = frame->instr_ptr;
#else
    _Py_CODEUNIT* at = frame->prev_instr;
#endif
    return (at - _PyCode_CODE(frame_code(frame))) * static_cast<Py_ssize_t>(sizeof(_Py_CODEUNIT));
}

inline void show_at(Frame* frame, Py_ssize_t offset) {
    _Py_CODEUNIT* at =
        _PyCode_CODE(frame_code(frame)) + offset / static_cast<Py_ssize_t>(sizeof(_Py_CODEUNIT));
#if SMELT_PY313
    frame->instr_ptr = at;
#else
    frame->prev_instr = at;
#endif
}

#if SMELT_PY312 && !SMELT_PY313
// Pops the top of the thread's data stack, which starts at `base`, and frees a chunk that becomes empty.
inline void pop_data_stack(PyThreadState* thread, PyObject** base) {
    _PyStackChunk* chunk = thread->datastack_chunk;
    if (base != &chunk->data[0]) {
        thread->datastack_top = base;
        return;
    }
    _PyStackChunk* below = chunk->previous;  // never null: the root chunk starts at data[1]
    thread->datastack_top = &below->data[below->top];
    thread->datastack_limit = reinterpret_cast<PyObject**>(reinterpret_cast<char*>(below) + below->size);
    thread->datastack_chunk = below;
    PyObjectArenaAllocator arena;
    PyObject_GetArenaAllocator(&arena);
    arena.free(arena.ctx, chunk, chunk->size);
}
#endif

// Ends a frame that never ran. Such a frame is not linked into the frame stack, has no frame object, and holds only
// its arguments. 3.11 clears and pops it in the caller of the hook; from 3.12 on the evaluation function must do so,
// and 3.12 does not export the functions for it.
inline void end_unrun_frame([[maybe_unused]] PyThreadState* thread, [[maybe_unused]] Frame* frame) {
#if SMELT_PY313
    _PyEval_FrameClearAndPop(thread, frame);
#elif SMELT_PY312
    if (frame->frame_obj) Py_FatalError("smelt: a frame that has not run has a frame object");
    thread->c_recursion_remaining--;  // as the evaluator does: finalizers may run here
    for (int i = 0; i < frame->stacktop; i++) Py_XDECREF(frame->localsplus[i]);
    Py_XDECREF(frame->f_locals);
    Py_DECREF(frame->f_funcobj);
    Py_DECREF(frame->f_code);
    thread->c_recursion_remaining++;
    pop_data_stack(thread, reinterpret_cast<PyObject**>(frame));
#endif
}

// Evaluates a frame without a charge in C recursion units. Under a hook 3.12 charges each Python frame two units of a
// small fixed budget (1500: 750 frames, below the default recursion limit; 3.13: 10000). The caller checks the real C
// stack instead, as 3.14 does itself.
inline PyObject* evaluate_uncharged(_PyFrameEvalFunction evaluate, PyThreadState* thread, Frame* frame,
                                    int throwing) {
#if SMELT_PY312 && !SMELT_PY314
    constexpr int kUnits = 2;  // PY_EVAL_C_STACK_UNITS
    thread->c_recursion_remaining += kUnits;
    PyObject* result = evaluate(thread, frame, throwing);
    thread->c_recursion_remaining -= kUnits;
    return result;
#else
    return evaluate(thread, frame, throwing);
#endif
}

// Whether Python code runs for a trace or profile function, or for the garbage collector.
inline bool runs_for_interpreter(PyThreadState* thread) {
    return thread->tracing || thread->interp->gc.collecting;
}

// Sets the recursion limit of the thread and returns the previous one. `sys.setrecursionlimit` in another thread sets
// the limit of all threads.
inline int set_thread_recursion_limit(PyThreadState* thread, int limit) {
#if SMELT_PY312
    int& now = thread->py_recursion_limit;
    int& remaining = thread->py_recursion_remaining;
#else
    int& now = thread->recursion_limit;
    int& remaining = thread->recursion_remaining;
#endif
    int before = now;
    remaining += limit - before;
    now = limit;
    return before;
}

// Limits calls to so many more levels for the lifetime of the object. From 3.12 on C code has a separate limit, which
// is unchanged.
class Shallow {
  public:
#if SMELT_PY312
    explicit Shallow(long) {}
#else
    explicit Shallow(long levels) : remaining_(PyThreadState_Get()->recursion_remaining) {
        spare_ = remaining_ > levels ? remaining_ - static_cast<int>(levels) : 0;
        remaining_ -= spare_;
    }
    ~Shallow() { remaining_ += spare_; }

  private:
    int& remaining_;
    int spare_;
#endif
    Shallow(const Shallow&) = delete;
    Shallow& operator=(const Shallow&) = delete;
};

// The number of objects created since the last collection of the youngest generation. 3.14.0 to 3.14.4 have other
// generations.
inline int& young_count(PyThreadState* thread) {
    return [](auto& gc) -> int& {
        if constexpr (requires { gc.generations; })
            return gc.generations[0].count;
        else
            return gc.young.count;
    }(thread->interp->gc);
}

// Disables the garbage collector for the lifetime of the object: allocations run no finalizers.
class CollectorOff {
  public:
    CollectorOff() : gc_(PyThreadState_Get()->interp->gc), was_(gc_.enabled) { gc_.enabled = 0; }
    ~CollectorOff() { gc_.enabled = was_; }
    CollectorOff(const CollectorOff&) = delete;
    CollectorOff& operator=(const CollectorOff&) = delete;

  private:
    struct _gc_runtime_state& gc_;
    int was_;
};

// ------------------------------------------------------------------------------------- data of a code object

struct CodeExtra {  // as in Objects/codeobject.c; `code_extra_layout_known` checks it
    Py_ssize_t size;
    void* slots[1];
};

inline Py_ssize_t request_code_extra(freefunc release) {
#if SMELT_PY312
    return PyUnstable_Eval_RequestCodeExtraIndex(release);
#else
    return _PyEval_RequestCodeExtraIndex(release);
#endif
}

// For a code object without a value at this index. Returns -1 with a Python error.
inline int set_code_extra(PyCodeObject* code, Py_ssize_t index, void* value) {
#if SMELT_PY312
    return PyUnstable_Code_SetExtra(reinterpret_cast<PyObject*>(code), index, value);
#else
    return _PyCode_SetExtra(reinterpret_cast<PyObject*>(code), index, value);
#endif
}

inline void* get_code_extra(PyCodeObject* code, Py_ssize_t index) {
    auto* extra = static_cast<CodeExtra*>(code->co_extra);
    return extra && index < extra->size ? extra->slots[index] : nullptr;
}

// Compares the inline reader above with the interpreter's writer. The interpreter frees `value` as it does all values
// of `index`.
inline bool code_extra_layout_known(Py_ssize_t index, void* value) {
    PyCodeObject* probe = PyCode_NewEmpty("probe", "probe", 1);
    if (!probe || set_code_extra(probe, index, value) < 0) return false;
    bool known = get_code_extra(probe, index) == value;
    Py_DECREF(probe);
    return known;
}

// ------------------------------------------------------------------------------ dictionaries, attributes

inline bool same_name(PyObject* a, PyObject* b, Py_hash_t hash_of_b) {
    return a == b || (reinterpret_cast<PyASCIIObject*>(a)->hash == hash_of_b && PyUnicode_Compare(a, b) == 0);
}

// The position of a name among a dictionary's entries at the last lookup. A repeated lookup then compares one
// pointer, without hashing. kUnhinted: the dictionary holds an equal string that is another object, so a search for
// its position would fail again.
using Hint = Py_ssize_t;
constexpr Hint kUnhinted = -1;

inline Hint find_hint(PyDictKeysObject* keys, PyObject* name) {
    for (Py_ssize_t i = 0; DK_IS_UNICODE(keys) && i < keys->dk_nentries; i++)
        if (DK_UNICODE_ENTRIES(keys)[i].me_key == name) return i;
    return kUnhinted;
}

// dict[name], borrowed, or null; never sets an error. `name` is an interned string.
inline PyObject* dict_get_name(PyObject* dict, PyObject* name, Py_hash_t hash, Hint* hint) {
    auto* d = reinterpret_cast<PyDictObject*>(dict);
    PyDictKeysObject* keys = d->ma_keys;
    if (*hint != kUnhinted && DK_IS_UNICODE(keys) && *hint < keys->dk_nentries) {
        PyDictUnicodeEntry* entry = DK_UNICODE_ENTRIES(keys) + *hint;
        if (entry->me_key == name) {
            PyObject* value = d->ma_values ? d->ma_values->values[*hint] : entry->me_value;
            if (value) return value;
        }
    }
    PyObject* value = _PyDict_GetItem_KnownHash(dict, name, hash);
    if (!value)
        PyErr_Clear();
    else if (*hint != kUnhinted)
        *hint = find_hint(d->ma_keys, name);
    return value;
}

// The memory word with the number of a dictionary's entries.
inline const void* dict_size_word(PyObject* dict) {
    return &reinterpret_cast<PyDictObject*>(dict)->ma_used;
}

#if SMELT_PY313
// Whether a dictionary shares the inline values of an object.
inline bool shares_values(PyObject* dict) {
    PyDictValues* values = reinterpret_cast<PyDictObject*>(dict)->ma_values;
    return values && values->embedded;
}
#else
// The memory word that each change of a dictionary increments.
inline const uint64_t* dict_version_word(PyObject* dict) {
    return &reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;
}
#endif

// The storage of an ordinary instance's attributes: `dict`, or `values` with the type's shared keys, or neither.
struct InstanceAttributes {
    PyObject* dict = nullptr;
    PyDictKeysObject* keys = nullptr;
    PyObject** values = nullptr;
};

// Does not create the dictionary of an instance without one.
inline InstanceAttributes instance_attributes(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    if (!(type->tp_flags & Py_TPFLAGS_MANAGED_DICT)) {
        PyObject** slot = type->tp_dictoffset ? _PyObject_GetDictPtr(object) : nullptr;
        return {slot ? *slot : nullptr, nullptr, nullptr};
    }
    PyDictKeysObject* keys = reinterpret_cast<PyHeapTypeObject*>(type)->ht_cached_keys;
#if SMELT_PY313
    // A dictionary may share the inline values: then read the dictionary.
    if (auto* dict = reinterpret_cast<PyObject*>(_PyObject_GetManagedDict(object))) return {dict};
    if (!(type->tp_flags & Py_TPFLAGS_INLINE_VALUES)) return {};
    PyDictValues* values = _PyObject_InlineValues(object);
    return values->valid ? InstanceAttributes{nullptr, keys, values->values} : InstanceAttributes{};
#elif SMELT_PY312
    PyDictOrValues either = *_PyObject_DictOrValuesPointer(object);
    if (!_PyDictOrValues_IsValues(either)) return {_PyDictOrValues_GetDict(either), nullptr, nullptr};
    return {nullptr, keys, _PyDictOrValues_GetValues(either)->values};
#else
    if (PyDictValues* values = *_PyObject_ValuesPointer(object)) return {nullptr, keys, values->values};
    return {*_PyObject_ManagedDictPointer(object), nullptr, nullptr};
#endif
}

// object.__dict__[name], borrowed, or null; never sets an error, runs no user code, creates no dictionary.
inline PyObject* instance_get_name(PyObject* object, PyObject* name, Py_hash_t hash, Hint* hint) {
    InstanceAttributes at = instance_attributes(object);
    if (at.dict) return dict_get_name(at.dict, name, hash, hint);
    if (!at.values) return nullptr;
    PyDictUnicodeEntry* entries = DK_UNICODE_ENTRIES(at.keys);
    if (*hint != kUnhinted && *hint < at.keys->dk_nentries && entries[*hint].me_key == name)
        return at.values[*hint];
    for (Py_ssize_t i = 0; i < at.keys->dk_nentries; i++) {
        if (!same_name(entries[i].me_key, name, hash)) continue;
        *hint = i;
        return at.values[i];
    }
    return nullptr;
}

// object.__dict__, borrowed, created if necessary; null without an error if the object has none.
inline PyObject* instance_dict(PyObject* object) {
    PyObject** slot = _PyObject_GetDictPtr(object);
    if (!slot) return nullptr;
    if (!*slot) {
        PyObject* made = PyObject_GenericGetDict(object, nullptr);
        if (!made) {
            PyErr_Clear();
            return nullptr;
        }
        Py_DECREF(made);  // the object holds it
        slot = _PyObject_GetDictPtr(object);
    }
    return slot ? *slot : nullptr;
}

// A class's own dictionary, borrowed; null if it has none.
inline PyObject* type_dict(PyObject* type) {
#if SMELT_PY312
    PyObject* dict = PyType_GetDict(reinterpret_cast<PyTypeObject*>(type));
    Py_XDECREF(dict);  // the class holds it
    return dict;
#else
    return reinterpret_cast<PyTypeObject*>(type)->tp_dict;
#endif
}

// The version of a class and its bases, or 0 if it has none now.
inline unsigned int type_version_tag(PyTypeObject* type) {
#if SMELT_PY313
    return type->tp_version_tag;
#else
    return PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG) ? type->tp_version_tag : 0;
#endif
}

// The same, assigned now if possible.
inline unsigned int assign_type_version(PyTypeObject* type) {
#if SMELT_PY312
    PyUnstable_Type_AssignVersionTag(type);
#else
    static PyObject* name = PyUnicode_InternFromString("__class__");
    if (name) _PyType_Lookup(type, name);  // a lookup assigns one
#endif
    return type_version_tag(type);
}

// Whether a class statement or a call of a metaclass created the class. Only types that C code creates from a
// PyType_Spec keep a copy of the name in the specification.
inline bool made_by_python(PyTypeObject* type) {
    return PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) &&
           !reinterpret_cast<PyHeapTypeObject*>(type)->_ht_tpname;
}

// ----------------------------------------------------------------------------------------------- annotations

inline bool dict_has(PyObject* dict, const char* name) {
    PyObject* key = PyUnicode_InternFromString(name);
    PyObject* found = key && dict ? PyDict_GetItemWithError(dict, key) : nullptr;
    PyErr_Clear();
    Py_XDECREF(key);
    return found && found != Py_None;
}

// Whether reading `__annotations__` would run code of the program: from 3.14 on functions, classes and modules
// compute annotations on demand.
inline bool annotations_wait([[maybe_unused]] PyObject* x) {
#if SMELT_PY314
    if (PyFunction_Check(x)) {
        auto* function = reinterpret_cast<PyFunctionObject*>(x);
        PyObject* maker = function->func_annotate;
        return !function->func_annotations && maker && maker != Py_None;
    }
    if (!PyType_Check(x) && !PyModule_Check(x)) return false;
    PyObject* dict = PyType_Check(x) ? type_dict(x) : PyModule_GetDict(x);
    if (dict_has(dict, "__annotations__") || dict_has(dict, "__annotations_cache__")) return false;
    return dict_has(dict, "__annotate__") || dict_has(dict, "__annotate_func__");
#else
    return false;
#endif
}

// Sets the annotations of a function without removing its `__annotate__` function.
inline void keep_annotations([[maybe_unused]] PyFunctionObject* function,
                             [[maybe_unused]] PyObject* annotations) {
#if SMELT_PY314
    PyObject* before = function->func_annotations;
    function->func_annotations = Py_NewRef(annotations);
    Py_XDECREF(before);
#endif
}

// ---------------------------------------------------------------------------------- references, exceptions

// The target of a weak reference, borrowed; null if it was destroyed.
inline PyObject* referent(PyObject* reference) {
#if SMELT_PY313
    PyObject* found = nullptr;
    if (PyWeakref_GetRef(reference, &found) > 0) Py_DECREF(found);
    return found;
#else
    PyObject* found = PyWeakref_GET_OBJECT(reference);
    return found == Py_None ? nullptr : found;
#endif
}

// Saves the pending exception and restores it at the end of the object's lifetime.
class ErrorAside {
  public:
#if SMELT_PY312
    ErrorAside() : error_(PyErr_GetRaisedException()) {}
    ~ErrorAside() { PyErr_SetRaisedException(error_); }
#else
    ErrorAside() { PyErr_Fetch(&type_, &error_, &traceback_); }
    ~ErrorAside() { PyErr_Restore(type_, error_, traceback_); }
#endif
    ErrorAside(const ErrorAside&) = delete;
    ErrorAside& operator=(const ErrorAside&) = delete;

  private:
    PyObject* error_ = nullptr;
#if !SMELT_PY312
    PyObject *type_ = nullptr, *traceback_ = nullptr;
#endif
};

// Raises an existing exception unchanged.
inline void raise_again(PyObject* error) {
#if SMELT_PY312
    PyErr_SetRaisedException(Py_NewRef(error));
#else
    PyErr_Restore(Py_NewRef(Py_TYPE(error)), Py_NewRef(error), PyException_GetTraceback(error));
#endif
}

}  // namespace smelt
