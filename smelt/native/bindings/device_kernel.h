// `smelt._native.DeviceKernel`: a devices::Kernel.
#pragma once
#include <Python.h>

#include "devices/device_kernel.h"

namespace smelt::devices {

bool is_kernel(PyObject* object);
Kernel& as_kernel(PyObject* object);

}  // namespace smelt::devices
