// The simulated driver by the names of AMD's, HIP: those functions that load and launch kernels, with their signatures.
//
// What differs from CUDA's: a thread has a current device, 0 at first, and no context; options of a compiler do not exist; a
// launch has fewer than 2**32 threads; shared memory need not be asked for (here CUDA's driver would refuse more than 48 KB).
#include <cstdint>
#include <map>

#define EXPORT extern "C" __attribute__((visibility("default")))

extern "C" {
int cuModuleLoadData(void** module, const void* image);
int cuModuleGetFunction(void** function, void* module, const char* name);
int cuFuncSetAttribute(void* function, int attribute, int value);
int cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared, void* stream, void** parameters,
                   void** extra);
int cuStreamIsCapturing(void* stream, int* status);
int simulated_device_count();
int simulated_current_device();
void simulated_set_device(int device);
}

namespace {

constexpr int kSuccess = 0, kInvalidValue = 1, kInvalidDevice = 101;
constexpr int kMaxDynamicShared = 8;
constexpr int kVersion = 60443482;

const std::map<int, const char*> kErrors = {
    {kSuccess, "hipSuccess"},        {kInvalidValue, "hipErrorInvalidValue"},
    {2, "hipErrorOutOfMemory"},      {kInvalidDevice, "hipErrorInvalidDevice"},
    {200, "hipErrorInvalidImage"},   {400, "hipErrorInvalidHandle"},
    {700, "hipErrorIllegalAddress"},
};

// The device of a thread that was told none.
void settle() {
    simulated_set_device(simulated_current_device());
}

}  // namespace

EXPORT int hipDriverGetVersion(int* version) {
    *version = kVersion;
    return kSuccess;
}

EXPORT int hipGetDevice(int* device) {
    *device = simulated_current_device();
    return kSuccess;
}

EXPORT int hipSetDevice(int device) {
    if (device < 0 || device >= simulated_device_count()) return kInvalidDevice;
    simulated_set_device(device);
    return kSuccess;
}

EXPORT int hipModuleLoadData(void** module, const void* image) {
    settle();
    return cuModuleLoadData(module, image);
}

EXPORT int hipModuleGetFunction(void** function, void* module, const char* name) {
    return cuModuleGetFunction(function, module, name);
}

EXPORT int hipModuleLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                 unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                                 void* stream, void** parameters, void** extra) {
    if ((uint64_t{grid_x} * block_x) >> 32) return kInvalidValue;
    settle();
    if (int error = cuFuncSetAttribute(function, kMaxDynamicShared, static_cast<int>(shared))) return error;
    return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream,
                          parameters, extra);
}

EXPORT int hipStreamIsCapturing(void* stream, int* status) {
    return cuStreamIsCapturing(stream, status);
}

EXPORT int hipDrvGetErrorName(int error, const char** name) {
    auto at = kErrors.find(error);
    *name = at == kErrors.end() ? nullptr : at->second;
    return at == kErrors.end() ? kInvalidValue : kSuccess;
}

EXPORT int hipDrvGetErrorString(int error, const char** text) {
    return hipDrvGetErrorName(error, text);
}
