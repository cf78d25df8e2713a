// Compiles PTX to machine code with the driver's compiler, as loading PTX does, but returns the code so that it can
// be saved.
#pragma once
#include <string>

namespace smelt::devices {

// Compiles for the processor of `device`. Thread-safe, without the GIL; takes milliseconds. Throws the driver's
// errors.
std::string linked(const std::string& ptx, int device);

}  // namespace smelt::devices
