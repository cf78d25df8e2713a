// Machine code of a GPU, loaded on each device that launches it.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "devices/gpu_driver.h"

namespace smelt::devices {

class Kernel {
  public:
    // `images`: at least one, best first. If the driver refuses one (machine code for another processor), it gets the next.
    Kernel(std::vector<std::string> images, std::string name, unsigned threads, unsigned shared,
           unsigned parts)
        : threads(threads),
          shared(shared),
          parts(parts),
          images_(std::move(images)),
          name_(std::move(name)) {}

    // The function on `device`, loaded on the first call, which takes milliseconds if the image is text. Thread-safe,
    // without the GIL. A module is never unloaded: a graph that the user captured may launch from it at any time.
    Function on(int device) { return on(device, images_); }

    // The same, but loads one of `images`, this kernel's code for the processor of `device`, if nothing is loaded yet.
    Function on(int device, const std::vector<std::string>& images);

    bool is_on(int device);

    const std::string& name() const { return name_; }
    const unsigned threads, shared;  // of a block: threads, bytes of shared memory
    const unsigned parts;            // the maximum of launches in a batched launch; 0 for other kernels

  private:
    Function load(const std::vector<std::string>& images) const;

    std::mutex mutex_;
    std::vector<Function> functions_;  // by device, nullptr: not loaded
    const std::vector<std::string> images_;
    const std::string name_;
};

}  // namespace smelt::devices
