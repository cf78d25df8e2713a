#include "devices/gpu_driver.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <array>
#include <mutex>

#include "devices/hip_driver.h"
#include "devices/shared_library.h"

namespace smelt::devices {
namespace {

constexpr int kMaxDevices = 64;

struct Choice {
    std::string file;  // "": the machine's driver
    bool hip = false;
};

Choice& choice() {
    static Choice made;
    return made;
}

Driver open(const std::string& file) {
    const Library library(file.empty() ? "libcuda.so.1" : file, RTLD_NOW);
    Driver d{};
    library.find("cuDriverGetVersion", d.version);
    library.find("cuInit", d.init);
    library.find("cuDeviceGetAttribute", d.attribute);
    library.find("cuCtxGetCurrent", d.context_of_thread);
    library.find("cuCtxSetCurrent", d.set_context);
    library.find("cuDeviceGet", d.device);
    library.find("cuDevicePrimaryCtxRetain", d.retain_primary_context);
    library.find("cuModuleLoadDataEx", d.load_module);
    library.find("cuModuleGetFunction", d.function_of_module);
    library.find("cuFuncSetAttribute", d.set_attribute);
    library.find("cuLaunchKernel", d.launch);
    library.find("cuStreamIsCapturing", d.capture_status);
    library.find("cuLinkCreate_v2", d.new_linker);
    library.find("cuLinkAddData_v2", d.add_to_linker);
    library.find("cuLinkComplete", d.link);
    library.find("cuLinkDestroy", d.delete_linker);
    library.find("cuGetErrorName", d.error_name);
    library.find("cuGetErrorString", d.error_text);
    return d;
}

// Retained once, for the life of the process, as in torch.
Context primary_context(int device) {
    static std::mutex mutex;
    static std::array<Context, kMaxDevices> contexts{};
    TORCH_CHECK(device >= 0 && device < kMaxDevices, "smelt: no GPU ", device);
    std::lock_guard<std::mutex> lock(mutex);
    if (!contexts[device]) {
        int handle = 0;
        check(driver().device(&handle, device), "looking for the GPU");
        check(driver().retain_primary_context(&contexts[device], handle), "entering the GPU's context");
    }
    return contexts[device];
}

}  // namespace

std::string CompilerLog::in_brackets() const {
    return text_[0] ? std::string(" (") + text_.data() + ")" : "";
}

void use_driver(const std::string& file) {
    choice().file = file;
}

void use_hip() {
    choice().hip = true;
}

const Driver& driver() {
    static const Driver opened = choice().hip ? open_hip(choice().file) : open(choice().file);
    return opened;
}

void fail(Status status, std::string_view doing) {
    const char *name = nullptr, *text = nullptr;
    driver().error_name(status, &name);
    driver().error_text(status, &text);
    TORCH_CHECK(false, "smelt: ", doing, " failed: ", name ? name : std::to_string(status), ", ",
                text ? text : "an error that the driver does not know");
}

void enter(int device) {
    Context current = nullptr;
    check(driver().context_of_thread(&current), "asking for the thread's context");
    if (!current) check(driver().set_context(primary_context(device)), "entering the GPU's context");
}

Entered::Entered(int device) {
    check(driver().context_of_thread(&before_), "asking for the thread's context");
    const Context context = primary_context(device);
    changed_ = before_ != context;
    if (changed_) check(driver().set_context(context), "entering the GPU's context");
}

Entered::~Entered() {
    if (changed_) driver().set_context(before_);
}

int capability(int ordinal) {
    constexpr int kMajor = 75, kMinor = 76;  // of CUdevice_attribute
    try {
        const Driver& d = driver();
        int device = 0, major = 0, minor = 0;
        const bool found = d.attribute && d.init(0) == 0 && d.device(&device, ordinal) == 0 &&
                           d.attribute(&major, kMajor, device) == 0 &&
                           d.attribute(&minor, kMinor, device) == 0;
        return found ? 10 * major + minor : 0;
    } catch (const c10::Error&) {
        return 0;
    }
}

bool is_captured(int device, Stream stream) {
    int captured = 0;
    const Status status = in_context(device, [&] { return driver().capture_status(stream, &captured); });
    check(status, "asking whether the stream is captured");
    return captured != 0;
}

}  // namespace smelt::devices
