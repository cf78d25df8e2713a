#include "devices/device_kernel.h"

#include <c10/core/DeviceGuard.h>

#include <array>

#include "devices/gpu_driver.h"

namespace smelt::devices {
namespace {

constexpr int kMaxDynamicShared = 8;                 // of CUfunction_attribute
constexpr unsigned kSharedWithoutAsking = 48 << 10;  // bytes

}  // namespace

Function Kernel::on(int device, const std::vector<std::string>& images) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (static_cast<size_t>(device) >= functions_.size()) functions_.resize(device + 1, nullptr);
    if (!functions_[device]) {
        const c10::DeviceGuard guard(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device)));
        enter(device);
        functions_[device] = load(images);
    }
    return functions_[device];
}

bool Kernel::is_on(int device) {
    std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<size_t>(device) < functions_.size() && functions_[device];
}

Function Kernel::load(const std::vector<std::string>& images) const {
    Module module = nullptr;
    for (const std::string& image : images) {
        CompilerLog log;
        const Status loaded =
            driver().load_module(&module, image.c_str(), log.size(), log.names(), log.values());
        if (loaded == 0) break;
        if (&image == &images.back()) fail(loaded, "loading the kernel " + name_ + log.in_brackets());
    }
    Function function = nullptr;
    check(driver().function_of_module(&function, module, name_.c_str()), "finding the kernel " + name_);
    if (shared > kSharedWithoutAsking)
        check(driver().set_attribute(function, kMaxDynamicShared, static_cast<int>(shared)),
              "asking for the shared memory of the kernel " + name_);
    return function;
}

}  // namespace smelt::devices
