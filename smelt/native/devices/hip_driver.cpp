// HIP, the driver of AMD's GPUs, as a `Driver`. NEVER RUN on such a GPU: only by the simulated driver
// (tests/simulated/hip.cpp). Names, types and numbers are those of hip/hip_runtime_api.h, ROCm 6 and 7.
//
// HIP has a current device where CUDA has a context. Here a context is the device number plus one, so that null is no
// context. A thread starts with device 0; torch's guards set it.
#include "devices/hip_driver.h"

#include <link.h>

#include <cstdint>
#include <string_view>

#include "devices/shared_library.h"

namespace smelt::devices {
namespace {

// Functions with other parameters than CUDA's.
struct Hip {
    Status (*get_device)(int*);
    Status (*set_device)(int);
    Status (*load_module)(Module*, const void* image);
} hip;

Context context_of(int device) {
    return reinterpret_cast<Context>(static_cast<intptr_t>(device) + 1);  // NOLINT
}

int device_of(Context context) {
    return static_cast<int>(reinterpret_cast<intptr_t>(context)) - 1;
}

// The file of the copy that torch has loaded, with any suffix: another copy would not know torch's streams.
std::string loaded() {
    std::string file;
    dl_iterate_phdr(
        [](dl_phdr_info* library, size_t, void* found) {
            const std::string_view name(library->dlpi_name);
            if (name.find("libamdhip64.so") == std::string_view::npos) return 0;
            *static_cast<std::string*>(found) = name;
            return 1;
        },
        &file);
    TORCH_CHECK(!file.empty(), "smelt: no driver of a GPU: torch has not loaded libamdhip64");
    return file;
}

}  // namespace

Driver open_hip(const std::string& file) {
    const Library library(file.empty() ? loaded() : file, RTLD_NOW);
    library.find("hipGetDevice", hip.get_device);
    library.find("hipSetDevice", hip.set_device);
    library.find("hipModuleLoadData", hip.load_module);
    Driver d{};
    library.find("hipDriverGetVersion", d.version);
    library.find("hipModuleGetFunction", d.function_of_module);
    library.find("hipModuleLaunchKernel", d.launch);  // fails for 2**32 threads and more
    library.find("hipStreamIsCapturing", d.capture_status);
    library.find("hipDrvGetErrorName", d.error_name);
    library.find("hipDrvGetErrorString", d.error_text);
    d.context_of_thread = [](Context* context) {
        int device = 0;
        const Status status = hip.get_device(&device);
        *context = context_of(device);
        return status;
    };
    d.set_context = [](Context context) { return hip.set_device(device_of(context)); };
    d.device = [](int* handle, int ordinal) {
        *handle = ordinal;
        return 0;
    };
    d.retain_primary_context = [](Context* context, int device) {
        *context = context_of(device);
        return 0;
    };
    // The image is machine code, so no compiler option applies.
    d.load_module = [](Module* module, const void* image, unsigned, int*, void**) {
        return hip.load_module(module, image);
    };
    // A launch may use all shared memory (codegen/triton/device_images.py makes sure that it suffices). hipFuncSetAttribute
    // is for functions of the program, not of modules.
    d.set_attribute = [](Function, int, int) { return 0; };
    return d;
}

}  // namespace smelt::devices
