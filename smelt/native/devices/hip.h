// The driver of AMD's GPUs.
#pragma once
#include <string>

#include "devices/driver.h"

namespace smelt::devices {

// `file`: a library in place of the one that torch has loaded. Throws where there is none.
Driver open_hip(const std::string& file);

}  // namespace smelt::devices
