// What smelt uses of torch's C++ beyond what torch offers to extensions: what is private, differs between versions, or is
// read by memory layout. In this file the version, the state of a thread, and a tensor's words of memory; beside it
//
//   torch_python.h     tensors, dtypes, devices and layouts as objects of Python; errors on their way there and back
//   torch_autograd.h   autograd's metadata of a tensor, nodes, edges, saved values, the engine's call that is running
//   torch_operators.h  operators by their names, called with boxed values
//   torch_script.h     objects of Python as boxed values
//   torch_random.h     where torch's generator stands
//   torch_settings.h   where torch has its settings
//
// No other file includes such headers of torch (tests/test_native_layers.py). What is used under torch's own name, because
// no version differs in it, is listed above the include that brings it. To support another version: build, go through
// each SMELT_TORCH_AT_LEAST, and import smelt, which tries what is read by layout (probes.cpp).
//
// These are files and no folder `torch`: in that the compiler would look for torch's own <torch/...>.
#pragma once

#if __has_include(<torch/headeronly/version.h>)
#include <torch/headeronly/version.h>
#else
#include <torch/version.h>  // of the C++ frontend, which says the same
#endif

#define SMELT_TORCH_AT_LEAST(major, minor) \
    (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

#if !SMELT_TORCH_AT_LEAST(2, 11)
#error "smelt needs torch 2.11 or newer"
#endif

// `at::detail::make_tensor`, `at::detail::empty_cpu`: tensors made without the dispatcher.
#include <ATen/EmptyTensor.h>
// `at::impl::PythonTorchFunctionTLS`: which modes ask `__torch_function__`, and whether anybody is asked.
#include <ATen/PythonTorchFunctionTLS.h>
// `c10::AutogradState`: grad mode, inference mode, forward AD, view replay.
#include <c10/core/AutogradState.h>
#include <c10/core/TensorImpl.h>
// `c10::impl::tls_local_dispatch_key_set`, `ForceDispatchKeyGuard`: which keys a thread includes and leaves out.
#include <c10/core/impl/LocalDispatchKeySet.h>
// `c10::impl::TorchDispatchModeTLS`: which dispatch modes are on.
#include <c10/core/impl/TorchDispatchModeTLS.h>
// `c10::impl::DeviceGuardImplInterface`: the current device and its stream, of devices that are not known to this build.
#include <c10/core/impl/DeviceGuardImplInterface.h>
// `torch::autograd::AnomalyMode`.
#include <torch/csrc/autograd/anomaly_mode.h>
#if SMELT_TORCH_AT_LEAST(2, 14)
#include <ATen/NodeCreationHooks.h>
#endif

#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

namespace smelt {

// --------------------------------------------------------------------------------------------- the state of a thread

// The dispatch state in which a plan's own steps run: beneath autograd, ADInplaceOrView and autocast.
inline c10::impl::LocalDispatchKeySet below_autograd(c10::impl::LocalDispatchKeySet caller) {
    caller.excluded_ =
        caller.excluded_ | c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;
    return caller;
}

// The thread is in that state for the life of the object.
class BelowAutograd {
  public:
    BelowAutograd() : guard_(below_autograd(c10::impl::tls_local_dispatch_key_set())) {}

  private:
    c10::impl::ForceDispatchKeyGuard guard_;
};

// While it lives, torch asks no `__torch_function__` of the user's about what is read.
class Unasked {
  public:
    Unasked() : before_(State::get_disabled_state()) {
        State::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
    }
    ~Unasked() { State::set_disabled_state(before_); }
    Unasked(const Unasked&) = delete;
    Unasked& operator=(const Unasked&) = delete;

  private:
    using State = at::impl::PythonTorchFunctionTLS;
    at::impl::TorchFunctionDisabledState before_;
};

// The device is the thread's current one for as long as this lives. As torch's guard, which however asks the driver for the
// device's context at the end even where the device was current before.
class OnDevice {
  public:
    explicit OnDevice(c10::Device device) {
        if (device.is_cpu()) return;
        impl_ = c10::impl::getDeviceGuardImpl(device.type());
        before_ = impl_->exchangeDevice(device);
        if (before_ == device) impl_ = nullptr;
    }
    ~OnDevice() {
        if (impl_) impl_->uncheckedSetDevice(before_);
    }
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;

  private:
    const c10::impl::DeviceGuardImplInterface* impl_ =
        nullptr;  // what puts the device back, if that is needed
    c10::Device before_ = c10::kCPU;
};

inline void make_current(c10::Device device) {
    if (!device.is_cpu()) c10::impl::getDeviceGuardImpl(device.type())->exchangeDevice(device);
}

// Whether hooks are given each node of autograd's graph as it is made, with what eager would save in it. Before torch 2.14
// there are no such hooks.
inline bool hooks_see_nodes() {
#if SMELT_TORCH_AT_LEAST(2, 14)
    return !at::impl::NodeCreationHooks::empty();
#else
    return false;
#endif
}

// ------------------------------------------------------------------------------------------ a tensor's words of memory

// How often it was written; 0 for an inference tensor, which does not count.
inline uint32_t version_of(const at::TensorBase& t) {
    const auto& counter = t.unsafeGetTensorImpl()->version_counter();
    return counter.enabled() ? counter.current_version() : 0;
}

// Members of an implementation that only its class may name. Their order is the same in torch 2.11 to 2.15; since 2.14 the
// flags have their values from where they are declared.
struct Peek : at::TensorImpl {
    // The eight bytes that hold dtype, device and all flags of a tensor.
    static uint64_t word(const at::TensorImpl* t) {
        static_assert(sizeof(caffe2::TypeMeta) == 2 && sizeof(std::optional<c10::Device>) <= 3);
        uint64_t word;
        std::memcpy(&word, &(t->*(&Peek::data_type_)), sizeof word);
        return word;
    }
    // Whether nobody computes its sizes and strides.
    static bool has_own_sizes(const at::TensorImpl* t) {
        return !(t->*(&Peek::matches_policy))(SizesStridesPolicy::CustomStrides);
    }
    static const c10::impl::SizesAndStrides& sizes(const at::TensorImpl* t) {
        return t->*(&Peek::sizes_and_strides_);
    }
};

}  // namespace smelt
