#include "devices/ptx_linker.h"

#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include "devices/gpu_driver.h"

namespace smelt::devices {
namespace {

constexpr int kPtx = 1;  // of CUjitInputType

struct OwnedLinker {
    Linker handle = nullptr;
    OwnedLinker() = default;
    OwnedLinker(const OwnedLinker&) = delete;
    OwnedLinker& operator=(const OwnedLinker&) = delete;
    ~OwnedLinker() {
        if (handle) driver().delete_linker(handle);
    }
};

}  // namespace

std::string linked(const std::string& ptx, int device) {
    const c10::DeviceGuard guard(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device)));
    enter(device);
    const Driver& d = driver();
    TORCH_CHECK(d.new_linker, "smelt: the driver of this GPU compiles no PTX");
    CompilerLog log;  // before the linker, which writes to it until it is destroyed
    OwnedLinker linker;
    check(d.new_linker(log.size(), log.names(), log.values(), &linker.handle), "making a linker");
    std::string text = ptx;  // the driver may write to it; the size includes the terminating zero
    const Status added =
        d.add_to_linker(linker.handle, kPtx, text.data(), text.size() + 1, "smelt", 0, nullptr, nullptr);
    check(added, "compiling PTX" + log.in_brackets());
    void* image = nullptr;
    size_t bytes = 0;
    const Status done = d.link(linker.handle, &image, &bytes);
    check(done, "linking PTX" + log.in_brackets());
    return {static_cast<const char*>(image), bytes};
}

}  // namespace smelt::devices
