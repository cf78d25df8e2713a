// Where torch has its settings.
//
// Used as they are: `at::globalContext()` and what it says of each setting.
#pragma once
#include "torch.h"

// `at::Context::fp32_precision`: how float32 is computed, as it was set; `at::Context::init_`.
#include <ATen/Context.h>

#include <span>
#include <vector>

namespace smelt {

// Where the settings have what was set of float32's precision, by backend and operator. They stay there: the keys never
// change. Empty where it is not known.
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
    Precisions places;
    for (const auto& [_, value] : precision_table(settings)) places.push_back(&value);
    return places;
}

// What is in front of the settings in their object, and is three quarters of it: which kinds of devices were initialized.
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

// The bytes that all settings are in, but for precisions.
inline std::span<const char> bytes_of(const at::Context& settings) {
    const size_t before = bytes_before_settings(settings);
    return {reinterpret_cast<const char*>(&settings) + before, sizeof(at::Context) - before};
}

}  // namespace smelt
