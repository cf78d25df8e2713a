// torch's global settings.
//
// Used directly: `at::globalContext()` and its getters.
#pragma once
#include "torch.h"

// `at::Context::fp32_precision`: the precision settings of float32; `at::Context::init_`.
#include <ATen/Context.h>

#include <span>
#include <vector>

namespace smelt {

// Addresses of float32's precision settings, by backend and operator. The addresses are stable: the keys never
// change. Empty if they are not accessible.
using Precisions = std::vector<const at::Float32Precision*>;

#if !SMELT_TORCH_AT_LEAST(2, 14)
auto& precision_table(const at::Context& settings);
auto& initialized_devices(const at::Context& settings);
// The compiler lets an explicit instantiation name a private member.
template <auto member>
struct PrecisionTable {
    friend auto& precision_table(const at::Context& settings) { return settings.*member; }
};
template struct PrecisionTable<&at::Context::fp32_precision>;
template <auto member>
struct InitializedDevices {
    friend auto& initialized_devices(const at::Context& settings) { return settings.*member; }
};
template struct InitializedDevices<&at::Context::init_>;

inline Precisions precisions_of(const at::Context& settings) {
    Precisions addresses;
    for (const auto& [_, value] : precision_table(settings)) addresses.push_back(&value);
    return addresses;
}

// The size of the members before the settings, three quarters of the object: which device types are initialized.
inline size_t bytes_before_settings(const at::Context& settings) {
    const auto& devices = initialized_devices(settings);
    return static_cast<const void*>(&devices) == &settings ? sizeof devices : 0;
}
#else
inline Precisions precisions_of(const at::Context&) {
    return {};
}

inline size_t bytes_before_settings(const at::Context&) {
    return 0;
}
#endif

// The bytes of all settings except precisions.
inline std::span<const char> bytes_of(const at::Context& settings) {
    const size_t before = bytes_before_settings(settings);
    return {reinterpret_cast<const char*>(&settings) + before, sizeof(at::Context) - before};
}

}  // namespace smelt
