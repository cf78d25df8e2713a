// PTX to the code of one processor, by the driver's compiler: what loading PTX does inside, but the code can be kept.
#pragma once
#include <string>

namespace smelt::devices {

// For the processor of `device`. Any thread, without the GIL; takes milliseconds. Throws what the driver says.
std::string linked(const std::string& ptx, int device);

}  // namespace smelt::devices
