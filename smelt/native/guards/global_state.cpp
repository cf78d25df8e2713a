// Global state: everything outside the arguments that changes what torch operators do, as numbers. One table, one
// field per line.
#include "cpython.h"

#include "guards/guard_checks.h"
#include "module.h"
#include "torch.h"
#include "torch_python.h"
#include "torch_settings.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

namespace smelt::guards {
namespace {

using at::Float32Backend;
using at::Float32Op;

// A hash of the types of the active torch-function modes, and of the device of a default-device mode.
int64_t function_mode_kinds(int64_t count) {
    uint64_t folded = 0;
    for (int64_t i = 0; i < count; i++) {
        PyObject* mode = function_mode(i);
        folded = folded * 31 + reinterpret_cast<uintptr_t>(Py_TYPE(mode));
        PyObject* dict = instance_dict(mode);
        PyObject* device = dict ? PyDict_GetItemString(dict, "device") : nullptr;
        const auto d = device ? as_device(device) : std::nullopt;
        if (!d) continue;
        folded = folded * 31 + (static_cast<uint8_t>(d->type()) << 8 | static_cast<uint8_t>(d->index()));
    }
    return static_cast<int64_t>(folded);
}

int64_t sdp_order(at::Context& context) {
    int64_t folded = 0;
    for (at::SDPBackend backend : context.sDPPriorityOrder())
        folded = folded * 8 + static_cast<int>(backend) + 1;
    return folded;
}

struct Sources {
    at::Context& context = at::globalContext();
    const c10::AutogradState& autograd = c10::AutogradState::get_tls_state();
    c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
    int64_t function_modes = at::impl::PythonTorchFunctionTLS::stack_len();

    int64_t precision(Float32Backend backend, Float32Op op) const {
        static const bool cuda_build = at::Context::hasCUDART();
        if (backend == Float32Backend::CUDA && !cuda_build) return 0;
        at::Float32Precision found = context.float32Precision(backend, op);
        // cuDNN has its own default. For other backends "not set" means IEEE; setting a value and undoing it leaves
        // IEEE.
        bool own_default = backend == Float32Backend::CUDA && op != Float32Op::MATMUL;
        if (found == at::Float32Precision::NONE && !own_default) found = at::Float32Precision::IEEE;
        return static_cast<int64_t>(found);
    }
    // Autocast is on for a device unless its dispatch key is excluded.
    bool autocast(c10::DispatchKey key) const { return !keys.excluded_.has(key); }
    // Dispatch modes include this key.
    int64_t dispatch_modes() const {
        return keys.included_.has(c10::DispatchKey::Python) ? c10::impl::TorchDispatchModeTLS::stack_len()
                                                            : 0;
    }
};

struct Field {
    const char* name;
    int64_t (*read)(const Sources&);
};

#define FIELD(name, expression) \
    {name, [](const Sources& s) -> int64_t { return static_cast<int64_t>(expression); }}

constexpr Field kFields[] = {
    FIELD("grad_mode", s.autograd.get_grad_mode()),
    FIELD("inference_mode", s.autograd.get_inference_mode()),
    FIELD("forward_ad", s.autograd.get_fw_grad_mode()),
    FIELD("anomaly_mode", torch::autograd::AnomalyMode::is_enabled()),
    FIELD("view_replay", s.autograd.get_view_replay_enabled()),
    FIELD("included_dispatch_keys", s.keys.included_.raw_repr()),
    FIELD("excluded_dispatch_keys", s.keys.excluded_.raw_repr()),
    FIELD("torch_function_state", at::impl::PythonTorchFunctionTLS::get_disabled_state()),
    FIELD("torch_function_modes", s.function_modes),
    FIELD("torch_function_mode_kinds", function_mode_kinds(s.function_modes)),
    FIELD("torch_dispatch_modes", s.dispatch_modes()),
    FIELD("autocast_cpu", s.autocast(c10::DispatchKey::AutocastCPU)),
    FIELD("autocast_cpu_dtype", at::autocast::get_autocast_dtype(at::kCPU)),
    FIELD("autocast_cuda", s.autocast(c10::DispatchKey::AutocastCUDA)),
    FIELD("autocast_cuda_dtype", at::autocast::get_autocast_dtype(at::kCUDA)),
    FIELD("autocast_cache", at::autocast::is_autocast_cache_enabled()),
    FIELD("default_dtype", c10::get_default_dtype_as_scalartype()),
    FIELD("num_threads", at::get_num_threads()),
    // The summary flags (allow_tf32, float32_matmul_precision) raise if the settings disagree.
    FIELD("cuda_matmul_precision", s.precision(Float32Backend::CUDA, Float32Op::MATMUL)),
    FIELD("cuda_conv_precision", s.precision(Float32Backend::CUDA, Float32Op::CONV)),
    FIELD("cuda_rnn_precision", s.precision(Float32Backend::CUDA, Float32Op::RNN)),
    FIELD("mkldnn_matmul_precision", s.precision(Float32Backend::MKLDNN, Float32Op::MATMUL)),
    FIELD("mkldnn_conv_precision", s.precision(Float32Backend::MKLDNN, Float32Op::CONV)),
    FIELD("mkldnn_rnn_precision", s.precision(Float32Backend::MKLDNN, Float32Op::RNN)),
    // The fields from here on are plain members of torch's settings object.
    FIELD("deterministic_algorithms", s.context.deterministicAlgorithms()),
    FIELD("deterministic_warn_only", s.context.deterministicAlgorithmsWarnOnly()),
    FIELD("deterministic_fill", s.context.deterministicFillUninitializedMemory()),
    FIELD("mkldnn", s.context.userEnabledMkldnn()),
    FIELD("mkldnn_deterministic", s.context.deterministicMkldnn()),
    FIELD("cudnn", s.context.userEnabledCuDNN()),
    FIELD("cudnn_benchmark", s.context.benchmarkCuDNN()),
    FIELD("cudnn_deterministic", s.context.deterministicCuDNN()),
    FIELD("sdp_flash", s.context.userEnabledFlashSDP()),
    FIELD("sdp_memory_efficient", s.context.userEnabledMemEfficientSDP()),
    FIELD("sdp_math", s.context.userEnabledMathSDP()),
    FIELD("sdp_cudnn", s.context.userEnabledCuDNNSDP()),
    FIELD("sdp_math_reduced", s.context.allowFP16BF16ReductionMathSDP()),
    FIELD("sdp_order", sdp_order(s.context)),
    FIELD("fp16_accumulation", s.context.allowFP16AccumulationCuBLAS()),
    FIELD("fp16_reduction_cpu", s.context.allowFP16ReductionCPU()),
};
#undef FIELD
constexpr int kFieldCount = std::size(kFields);
using GlobalState = std::array<int64_t, kFieldCount>;
constexpr int index_of(std::string_view name) {
    int i = 0;
    while (kFields[i].name != name) i++;
    return i;
}
constexpr int kFirstPrecision = index_of("cuda_matmul_precision");
constexpr int kFirstPlainMember = index_of("deterministic_algorithms");

PyObject* field_names() {
    PyObject* names = PyTuple_New(kFieldCount);
    for (int i = 0; names && i < kFieldCount; i++) {
        PyObject* name = PyUnicode_FromString(kFields[i].name);
        if (!name)
            Py_CLEAR(names);
        else
            PyTuple_SET_ITEM(names, i, name);
    }
    return names;
}

PyObject* py_global_state(PyObject*, PyObject*) {
    Sources sources;
    PyObject* tuple = PyTuple_New(kFieldCount);
    for (int i = 0; tuple && i < kFieldCount; i++) {
        PyObject* value = PyLong_FromLongLong(kFields[i].read(sources));
        if (!value)
            Py_CLEAR(tuple);
        else
            PyTuple_SET_ITEM(tuple, i, value);
    }
    return tuple;
}

// Compares the global state with an earlier one.
class GlobalStateMatcher {
  public:
    bool parse(PyObject* tuple);  // result of py_global_state; false with a Python error
    bool matches();

  private:
    bool settings_agreed(const at::Context& settings) const;
    void note_settings(const at::Context& settings);

    GlobalState expected_;
    // torch's settings at the last field-by-field comparison that matched: their bytes, and the precisions, which are
    // stored elsewhere.
    std::vector<char> agreed_;
    std::vector<at::Float32Precision> agreed_precisions_;
};

const Precisions& precisions() {
    static const Precisions* const precision_addresses = new Precisions(precisions_of(at::globalContext()));
    return *precision_addresses;
}

bool GlobalStateMatcher::settings_agreed(const at::Context& settings) const {
    const std::span<const char> bytes = bytes_of(settings);
    if (agreed_.size() != bytes.size()) return false;
    const Precisions& precision_addresses = precisions();
    for (size_t i = 0; i < precision_addresses.size(); i++)
        if (*precision_addresses[i] != agreed_precisions_[i]) return false;
    return std::memcmp(agreed_.data(), bytes.data(), bytes.size()) == 0;
}

void GlobalStateMatcher::note_settings(const at::Context& settings) {
    const std::span<const char> bytes = bytes_of(settings);
    agreed_.assign(bytes.begin(), bytes.end());
    agreed_precisions_.clear();
    for (const at::Float32Precision* address : precisions()) agreed_precisions_.push_back(*address);
}

bool GlobalStateMatcher::parse(PyObject* tuple) {
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != kFieldCount) {
        PyErr_SetString(PyExc_TypeError, "global_state: expected what _native.global_state() returned");
        return false;
    }
    for (int i = 0; i < kFieldCount; i++) {
        expected_[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
        if (PyErr_Occurred()) return false;
    }
    return true;
}

// Whether these fields equal `expected`. Reads are inlined: a call through the table takes longer than most reads.
template <int begin, int end>
bool agree(const Sources& sources, const GlobalState& expected) {
    return [&]<int... i>(std::integer_sequence<int, i...>) {
        return ((kFields[begin + i].read(sources) == expected[begin + i]) && ...);
    }(std::make_integer_sequence<int, end - begin>{});
}

bool GlobalStateMatcher::matches() {
    Sources sources;
    // Comparing all bytes of the settings object takes less time than calling its getters one by one.
    if (!agree<0, kFirstPrecision>(sources, expected_)) return false;
    if (precisions().empty() && !agree<kFirstPrecision, kFirstPlainMember>(sources, expected_)) return false;
    if (settings_agreed(sources.context)) return true;
    if (!agree<kFirstPrecision, kFieldCount>(sources, expected_)) return false;
    note_settings(sources.context);
    return true;
}

struct GlobalStateIs : Check {
    GlobalStateMatcher state;
    bool holds(PyObject*, Pass&) override { return state.matches(); }

    static CheckPtr make(PyObject* value, Building&) {
        auto check = std::make_unique<GlobalStateIs>();
        return check->state.parse(value) ? std::move(check) : nullptr;
    }
};
const CheckKind global_state_kind("global_state", GlobalStateIs::make);

PyMethodDef global_state_functions[] = {{"global_state", py_global_state, METH_NOARGS,
                                         "global_state(): everything outside the arguments that changes what "
                                         "operators do; a tuple of ints, named by GLOBAL_STATE."},
                                        {}};

}  // namespace

int init_global_state(PyObject* module) {
    PyObject* names = field_names();
    int failed = names ? PyModule_AddObjectRef(module, "GLOBAL_STATE", names) : -1;
    Py_XDECREF(names);
    return failed ? failed : PyModule_AddFunctions(module, global_state_functions);
}

}  // namespace smelt::guards
