// How a device runs machine code over a range of items.
#pragma once
#include "plan/program.h"

namespace smelt::plan {

// `data[r]` is the address of register r. Calls return when the work is done or queued behind what the device was given
// before.
class Launcher {
  public:
    virtual ~Launcher() = default;
    virtual void launch(const Launch& l, void* const* data) const = 0;
    // `launches` are those of `t`.
    virtual void together(const Together& t, const Launch* launches, void* const* data) const = 0;
};

// That of a kind of device. Throws where there is none.
const Launcher& launcher_of(c10::Device device);

}  // namespace smelt::plan
