// The driver of AMD's GPUs.
#pragma once
#include <string>

#include "devices/gpu_driver.h"

namespace smelt::devices {

// `file`: a library instead of the one that torch has loaded. Throws if there is none.
Driver open_hip(const std::string& file);

}  // namespace smelt::devices
