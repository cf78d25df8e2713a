// How a device runs machine code over a range of items.
#pragma once
#include "plan/program.h"

namespace smelt::plan {

// Where work goes: a device's stream, as its driver has it.
struct Queue {
    c10::DeviceIndex device;
    void* stream;
};

// `data[r]` is the address of register r. Calls return when the work is done, or queued behind what `queue` was given
// before.
class Launcher {
  public:
    virtual ~Launcher() = default;
    virtual void launch(const Launch& l, void* const* data, const Queue& queue) const = 0;
    // `launches` are those of `t`.
    virtual void together(const ParallelLaunch& t, const Launch* launches, void* const* data,
                          const Queue& queue) const = 0;
};

// On torch's threads; `function` is `void (*)(void** buffers, int64_t begin, int64_t end)`. Behind the registers' addresses
// `buffers` holds the values of the launch's sizes, in their place.
const Launcher& cpu_launcher();

// In blocks of `grain` items on a GPU; `function` is the driver's. The kernel's parameters are the registers, then the
// launch's sizes and the number of items (64 bits each). Launches together are one launch of the function that they share, whose parameter is a table
// (codegen/triton/kernel_source.py says how it is laid out).
const Launcher& gpu_launcher();

}  // namespace smelt::plan
