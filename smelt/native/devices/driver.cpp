#include "devices/driver.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <array>
#include <atomic>
#include <mutex>

namespace smelt::devices {
namespace {

constexpr int kMaxDevices = 64;

std::string& driver_file() {
    static std::string file = "libcuda.so.1";
    return file;
}

template <class F>
void find(void* library, const char* name, F& function) {
    function = reinterpret_cast<F>(dlsym(library, name));  // NOLINT
    TORCH_CHECK(function, "smelt: the driver in ", driver_file(), " has no function ", name);
}

Driver open() {
    void* library = dlopen(driver_file().c_str(), RTLD_NOW);
    TORCH_CHECK(library, "smelt: no driver of a GPU: ", dlerror());
    Driver d{};
    find(library, "cuDriverGetVersion", d.version);
    find(library, "cuCtxGetCurrent", d.context_of_thread);
    find(library, "cuCtxSetCurrent", d.set_context);
    find(library, "cuDeviceGet", d.device);
    find(library, "cuDevicePrimaryCtxRetain", d.retain_primary_context);
    find(library, "cuModuleLoadDataEx", d.load_module);
    find(library, "cuModuleGetFunction", d.function_of_module);
    find(library, "cuFuncSetAttribute", d.set_attribute);
    find(library, "cuLaunchKernel", d.launch);
    find(library, "cuStreamIsCapturing", d.capture_status);
    find(library, "cuLinkCreate_v2", d.new_linker);
    find(library, "cuLinkAddData_v2", d.add_to_linker);
    find(library, "cuLinkComplete", d.link);
    find(library, "cuLinkDestroy", d.delete_linker);
    find(library, "cuGetErrorName", d.error_name);
    find(library, "cuGetErrorString", d.error_text);
    return d;
}

// Retained once, for the life of the process, as torch does.
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
    driver_file() = file;
}

const Driver& driver() {
    static const Driver opened = open();
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

bool is_captured(Stream stream) {
    int status = 0;
    check(driver().capture_status(stream, &status), "asking whether the stream is captured");
    return status != 0;
}

}  // namespace smelt::devices
