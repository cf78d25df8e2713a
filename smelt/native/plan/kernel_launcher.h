// Launches machine code over a range of items on a device.
#pragma once
#include "plan/program.h"

namespace smelt::plan {

// A device's stream, as its driver represents it.
struct Queue {
    c10::DeviceIndex device;
    void* stream;
};

// `data[r]` is the address of register r. A call returns when the work is done, or queued behind earlier work of
// `queue`.
class Launcher {
  public:
    virtual ~Launcher() = default;
    virtual void launch(const Launch& l, void* const* data, const Queue& queue) const = 0;
    // `launches` are those of `t`.
    virtual void parallel_launch(const BatchedLaunch& t, const Launch* launches, void* const* data,
                                 const Queue& queue) const = 0;
};

// Runs on torch's threads; `function` is `void (*)(void** buffers, int64_t begin, int64_t end)`. After the addresses
// of the registers `buffers` holds the values of the launch's sizes.
const Launcher& cpu_launcher();

// Runs in blocks of `grain` items on a GPU; `function` is the driver's. The kernel's parameters are the registers,
// the launch's sizes and the number of items (64 bits each). A batched launch is one launch of a function that all
// its launches share, whose parameter is a table (codegen/triton/kernel_source.py describes its layout).
const Launcher& gpu_launcher();

}  // namespace smelt::plan
