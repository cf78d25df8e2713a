// torch's C++ beyond its interface for extensions: what is private, differs between versions, or is read by memory
// layout. This file has the version, thread state, and the memory words of a tensor; other files have:
//
//   torch_python.h     tensors, dtypes, devices and layouts as Python objects; conversion of errors
//   torch_autograd.h   autograd metadata of a tensor, nodes, edges, saved values, the current engine call
//   torch_operators.h  operators by name, called with boxed values
//   torch_script.h     Python objects as boxed values
//   torch_generator.h  state and offset of torch's random generators
//   torch_settings.h   torch's global settings
//
// No other file includes private headers of torch (tests/test_native_layers.py). Names that are used directly,
// because they are the same in all versions, are listed above the include that declares them. To support another
// version: build, go through each SMELT_TORCH_AT_LEAST, and import smelt, which tries what is read by layout
// (layout_probes.cpp).
//
// These files are not in a folder `torch`, because the compiler would look there for torch's own <torch/...>.
#pragma once

#if __has_include(<torch/headeronly/version.h>)
#include <torch/headeronly/version.h>
#else
#include <torch/version.h>  // of the C++ frontend, the same version
#endif

#define SMELT_TORCH_AT_LEAST(major, minor) \
    (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

#if !SMELT_TORCH_AT_LEAST(2, 11)
#error "smelt needs torch 2.11 or newer"
#endif

// `at::detail::make_tensor`, `at::detail::empty_cpu`: tensors made without the dispatcher.
#include <ATen/EmptyTensor.h>
// `at::impl::PythonTorchFunctionTLS`: the active torch-function modes, and whether `__torch_function__` is enabled.
#include <ATen/PythonTorchFunctionTLS.h>
// `c10::AutogradState`: grad mode, inference mode, forward AD, view replay.
#include <c10/core/AutogradState.h>
#include <c10/core/TensorImpl.h>
// `c10::impl::tls_local_dispatch_key_set`, `ForceDispatchKeyGuard`: the dispatch keys that a thread includes and
// excludes.
#include <c10/core/impl/LocalDispatchKeySet.h>
// `c10::impl::TorchDispatchModeTLS`: the active dispatch modes.
#include <c10/core/impl/TorchDispatchModeTLS.h>
// `c10::impl::DeviceGuardImplInterface`: the current device and its stream, for devices that are unknown to this
// build.
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

// The dispatch state of a plan's own steps: below autograd, ADInplaceOrView and autocast.
inline c10::impl::LocalDispatchKeySet below_autograd(c10::impl::LocalDispatchKeySet caller) {
    caller.excluded_ =
        caller.excluded_ | c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;
    return caller;
}

// Sets that state for the lifetime of the object.
class BelowAutograd {
  public:
    BelowAutograd() : guard_(below_autograd(c10::impl::tls_local_dispatch_key_set())) {}

  private:
    c10::impl::ForceDispatchKeyGuard guard_;
};

// Disables `__torch_function__` for the lifetime of the object.
class NoTorchFunction {
  public:
    NoTorchFunction() : before_(State::get_disabled_state()) {
        State::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
    }
    ~NoTorchFunction() { State::set_disabled_state(before_); }
    NoTorchFunction(const NoTorchFunction&) = delete;
    NoTorchFunction& operator=(const NoTorchFunction&) = delete;

  private:
    using State = at::impl::PythonTorchFunctionTLS;
    at::impl::TorchFunctionDisabledState before_;
};

// Makes the device current for the lifetime of the object. torch's guard does the same, but its destructor also asks
// the driver for the device's context if the device was current before.
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
    const c10::impl::DeviceGuardImplInterface* impl_ = nullptr;  // restores the device, if necessary
    c10::Device before_ = c10::kCPU;
};

inline void make_current(c10::Device device) {
    if (!device.is_cpu()) c10::impl::getDeviceGuardImpl(device.type())->exchangeDevice(device);
}

// Whether hooks observe each autograd node when it is created, with the values that eager would save. Such hooks
// exist from torch 2.14 on.
inline bool hooks_see_nodes() {
#if SMELT_TORCH_AT_LEAST(2, 14)
    return !at::impl::NodeCreationHooks::empty();
#else
    return false;
#endif
}

// ------------------------------------------------------------------------------------------ a tensor's words of memory

// The version counter; 0 for an inference tensor, which has none.
inline uint32_t version_of(const at::TensorBase& t) {
    const auto& counter = t.unsafeGetTensorImpl()->version_counter();
    return counter.enabled() ? counter.current_version() : 0;
}

// Protected members of TensorImpl. Their order is the same in torch 2.11 to 2.15; since 2.14 the flags are
// initialized where they are declared.
struct TensorImplFields : at::TensorImpl {
    // The eight bytes with dtype, device and all flags of a tensor.
    static uint64_t word(const at::TensorImpl* t) {
        static_assert(sizeof(caffe2::TypeMeta) == 2 && sizeof(std::optional<c10::Device>) <= 3);
        uint64_t word;
        std::memcpy(&word, &(t->*(&TensorImplFields::data_type_)), sizeof word);
        return word;
    }
    // Whether sizes and strides are stored, not computed by a subclass.
    static bool has_own_sizes(const at::TensorImpl* t) {
        return !(t->*(&TensorImplFields::matches_policy))(SizesStridesPolicy::CustomStrides);
    }
    static const c10::impl::SizesAndStrides& sizes(const at::TensorImpl* t) {
        return t->*(&TensorImplFields::sizes_and_strides_);
    }
    static int64_t storage_offset(const at::TensorImpl* t) {
        return t->*(&TensorImplFields::storage_offset_);
    }
};

}  // namespace smelt
