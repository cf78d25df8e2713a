// A simulated CUDA driver: the functions of libcuda that load and launch kernels, with their signatures and errors.
//
// A module's image is the text `simulated <address> <parameters> <parts> <process>`: the address of a host function
// `void (void** buffers, int64_t begin, int64_t end)` and a letter for each parameter: p, a pointer to a buffer; v, a number,
// which the function finds in memory. An int64 number of items follows these; what follows that is ignored. A launch calls
// the function for all items before it returns. An image that names a process by its id can be loaded there only. In place
// of the address, `<file>:<symbol>` names a function of a shared library, for any process.
//
// The linker makes `linked <image>` of an image that can be loaded; that can be loaded too.
// Where `parts` is not 0, there is one parameter, a table of int64: the first block of each part, for as many parts as the next
// power of two, then for each part its number of items and its parameters. A launch calls the function for each part
// that begins before its last block.
//
// What a real driver refuses is refused here: a thread without a context, a context that the function or the stream does
// not belong to, a module that was unloaded, an empty or too large grid or block, more shared memory than was asked for.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kDevices = 2, kDriverVersion = 12080;
constexpr int kPtx = 1;  // CUjitInputType
constexpr std::string_view kLinked = "linked ";
constexpr int kSharedByDefault = 48 << 10, kSharedAtMost = 227 << 10;
constexpr int kMaxThreadsPerBlock = 0, kSharedSizeBytes = 1, kMaxDynamicShared = 8;  // CUfunction_attribute

enum Result : int {
    kSuccess = 0,
    kInvalidValue = 1,
    kInvalidDevice = 101,
    kInvalidImage = 200,
    kInvalidContext = 201,
    kInvalidPtx = 218,
    kInvalidHandle = 400,
};

const std::map<int, std::pair<const char*, const char*>> kErrors = {
    {kSuccess, {"CUDA_SUCCESS", "no error"}},
    {kInvalidValue, {"CUDA_ERROR_INVALID_VALUE", "invalid argument"}},
    {2, {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}},
    {kInvalidDevice, {"CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"}},
    {kInvalidImage, {"CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"}},
    {kInvalidContext, {"CUDA_ERROR_INVALID_CONTEXT", "invalid device context"}},
    {kInvalidPtx, {"CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"}},
    {kInvalidHandle, {"CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"}},
    {700, {"CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"}},
    {701, {"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"}},
};

struct Context {
    int device;
};

struct Module;

struct Function {
    Module* module;
    std::string name;
    int shared = kSharedByDefault;  // how much dynamic shared memory a launch may ask for
};

using Kernel = void (*)(void** buffers, int64_t begin, int64_t end);

struct Module {
    Context* context;
    Kernel kernel;
    std::string
        parameters;  // a letter for each: p, a pointer; v, a number, which the function reads from memory
    unsigned parts;  // of a table
    std::map<std::string, std::unique_ptr<Function>> functions;
};

// As Python reads it.
struct Launch {
    unsigned grid[3], block[3], shared;
    int device;
    void* stream;
    const char* name;  // kept by the log
    int64_t items;
};

struct Linker {
    std::string image;
};

Context contexts[kDevices] = {{0}, {1}};
thread_local Context* current = nullptr;

std::mutex mutex;  // of what is below
std::vector<std::unique_ptr<Module>> modules;
std::vector<Launch> launches;
std::map<std::string, int> launched;  // how often each name was, and the names themselves
int next_failure = kSuccess;

// Between the beginning and the end of a capture, on any stream, launches are kept and not made.
using Node = std::function<void()>;
bool capturing = false;
std::vector<std::vector<Node>> graphs;

// The error that a test asked for, once.
int injected() {
    std::lock_guard lock(mutex);
    return std::exchange(next_failure, kSuccess);
}

Module* live_module(void* handle) {
    auto at = std::find_if(modules.begin(), modules.end(), [&](auto& m) { return m.get() == handle; });
    return at == modules.end() ? nullptr : at->get();
}

Function* live_function(void* handle) {
    for (auto& module : modules)
        for (auto& [name, function] : module->functions)
            if (function.get() == handle) return function.get();
    return nullptr;
}

// The lowest byte of a stream's handle is its device and one: see `handle_of` in device.cpp. Null is the default stream
// of the current context.
bool belongs_to(void* stream, const Context& context) {
    return !stream ||
           (reinterpret_cast<uintptr_t>(stream) & 0xff) == static_cast<uintptr_t>(context.device + 1);
}

int why_not(const Launch& l, const Function& f) {
    if (f.module->context != current || !belongs_to(l.stream, *current)) return kInvalidHandle;
    auto empty = [](const unsigned (&size)[3]) { return !size[0] || !size[1] || !size[2]; };
    if (empty(l.grid) || empty(l.block)) return kInvalidValue;
    if (l.grid[1] > 65535 || l.grid[2] > 65535 || l.grid[0] > 0x7fffffff) return kInvalidValue;
    if (l.block[0] > 1024 || l.block[1] > 1024 || l.block[2] > 64) return kInvalidValue;
    if (uint64_t{l.block[0]} * l.block[1] * l.block[2] > 1024) return kInvalidValue;
    return static_cast<int>(l.shared) > f.shared ? kInvalidValue : kSuccess;
}

struct Image {
    unsigned long long address = 0;
    char kinds[512] = "";
    unsigned parts = 0;
    int process = 0;
};

bool read(const char* text, Image& image) {
    if (std::string_view(text).starts_with(kLinked)) text += kLinked.size();
    char file[1024] = "", symbol[256] = "";
    if (std::sscanf(text, "simulated %1023[^: ]:%255s %511[pv] %u", file, symbol, image.kinds,
                    &image.parts) >= 2) {
        void* library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
        void* found = library ? dlsym(library, symbol) : nullptr;
        image.address = reinterpret_cast<uintptr_t>(found);
        return found;
    }
    const int count = std::sscanf(text, "simulated %llu %511[pv] %u %d", &image.address, image.kinds,
                                  &image.parts, &image.process);
    return count >= 1 && (image.process == 0 || image.process == getpid());
}

void call(const Module& m, void** parameters, int64_t items) {
    std::vector<void*> buffers(m.parameters.size());
    for (size_t i = 0; i < buffers.size(); ++i)
        buffers[i] = m.parameters[i] == 'v' ? parameters[i] : *static_cast<void**>(parameters[i]);
    m.kernel(buffers.data(), 0, items);
}

void call_parts(const Module& m, int64_t* table, int64_t blocks) {
    int64_t* fields = table + std::bit_ceil(m.parts);
    for (unsigned part = 0; part < m.parts && table[part] < blocks; ++part) {
        std::vector<void*> parameters;
        for (size_t i = 1; i <= m.parameters.size(); ++i) parameters.push_back(fields + i);
        call(m, parameters.data(), fields[0]);
        fields += 1 + m.parameters.size();
    }
}

// The launch, with the addresses that it has now.
Node repeated(const Module& m, void** parameters, int64_t items) {
    std::vector<void*> buffers(m.parameters.size());
    for (size_t i = 0; i < buffers.size(); ++i) buffers[i] = *static_cast<void**>(parameters[i]);
    return [&m, buffers, items]() mutable { m.kernel(buffers.data(), 0, items); };
}

Node repeated_parts(const Module& m, void** parameters, int64_t blocks) {
    auto* begin = static_cast<int64_t*>(parameters[0]);
    std::vector<int64_t> table(begin, begin + std::bit_ceil(m.parts) + m.parts * (1 + m.parameters.size()));
    return [&m, table, blocks]() mutable { call_parts(m, table.data(), blocks); };
}

}  // namespace

// ---------------------------------------------------------------------------------------------------- the driver

EXPORT int cuInit(unsigned) {
    return injected();
}

EXPORT int cuDriverGetVersion(int* version) {
    *version = kDriverVersion;
    return injected();
}

EXPORT int cuDeviceGet(int* device, int ordinal) {
    if (ordinal < 0 || ordinal >= kDevices) return kInvalidDevice;
    *device = ordinal;
    return injected();
}

EXPORT int cuDeviceGetCount(int* count) {
    *count = kDevices;
    return injected();
}

EXPORT int cuDeviceGetAttribute(int* value, int attribute, int device) {
    if (device < 0 || device >= kDevices) return kInvalidDevice;
    *value = attribute == 75 ? 9 : 0;  // the major compute capability
    return injected();
}

EXPORT int cuDevicePrimaryCtxRetain(void** context, int device) {
    if (device < 0 || device >= kDevices) return kInvalidDevice;
    *context = &contexts[device];
    return injected();
}

EXPORT int cuDevicePrimaryCtxRelease(int) {
    return injected();
}

EXPORT int cuCtxGetCurrent(void** context) {
    *context = current;
    return injected();
}

EXPORT int cuCtxSetCurrent(void* context) {
    current = static_cast<Context*>(context);
    return injected();
}

EXPORT int cuModuleLoadData(void** module, const void* image) {
    if (int error = injected()) return error;
    if (!current) return kInvalidContext;
    Image found;
    if (!read(static_cast<const char*>(image), found)) return kInvalidImage;
    std::lock_guard lock(mutex);
    modules.push_back(std::make_unique<Module>(
        Module{current, reinterpret_cast<Kernel>(found.address), found.kinds, found.parts, {}}));
    *module = modules.back().get();
    return kSuccess;
}

EXPORT int cuModuleLoadDataEx(void** module, const void* image, unsigned, int*, void**) {
    return cuModuleLoadData(module, image);
}

EXPORT int cuLinkCreate_v2(unsigned, int*, void**, void** linker) {
    if (int error = injected()) return error;
    if (!current) return kInvalidContext;
    *linker = new Linker{std::string(kLinked)};
    return kSuccess;
}

EXPORT int cuLinkAddData_v2(void* linker, int kind, void* data, size_t bytes, const char*, unsigned, int*,
                            void**) {
    const char* text = static_cast<const char*>(data);
    Image found;
    if (kind != kPtx || !bytes || text[bytes - 1]) return kInvalidValue;
    if (!read(text, found)) return kInvalidPtx;
    static_cast<Linker*>(linker)->image += text;
    return kSuccess;
}

EXPORT int cuLinkComplete(void* linker, void** image, size_t* bytes) {
    std::string& linked = static_cast<Linker*>(linker)->image;
    *image = linked.data();
    *bytes = linked.size() + 1;
    return kSuccess;
}

EXPORT int cuLinkDestroy(void* linker) {
    delete static_cast<Linker*>(linker);
    return kSuccess;
}

EXPORT int cuModuleUnload(void* handle) {
    if (int error = injected()) return error;
    std::lock_guard lock(mutex);
    if (!live_module(handle)) return kInvalidHandle;
    std::erase_if(modules, [&](auto& m) { return m.get() == handle; });
    return kSuccess;
}

EXPORT int cuModuleGetFunction(void** function, void* handle, const char* name) {
    if (int error = injected()) return error;
    std::lock_guard lock(mutex);
    Module* module = live_module(handle);
    if (!module) return kInvalidHandle;
    auto& made = module->functions[name];
    if (!made) made = std::make_unique<Function>(Function{module, name});
    *function = made.get();
    return kSuccess;
}

EXPORT int cuFuncSetAttribute(void* handle, int attribute, int value) {
    if (int error = injected()) return error;
    std::lock_guard lock(mutex);
    Function* function = live_function(handle);
    if (!function) return kInvalidHandle;
    if (attribute == kMaxDynamicShared && value > kSharedAtMost) return kInvalidValue;
    if (attribute == kMaxDynamicShared) function->shared = value;
    return kSuccess;
}

EXPORT int cuFuncGetAttribute(int* value, int attribute, void* handle) {
    if (int error = injected()) return error;
    std::lock_guard lock(mutex);
    Function* function = live_function(handle);
    if (!function) return kInvalidHandle;
    *value = attribute == kMaxThreadsPerBlock ? 1024
             : attribute == kMaxDynamicShared ? function->shared
             : attribute == kSharedSizeBytes  ? 0
                                              : 32;
    return kSuccess;
}

EXPORT int cuLaunchKernel(void* handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned shared, void* stream,
                          void** parameters, void**) {
    if (int error = injected()) return error;
    if (!current) return kInvalidContext;
    const Module* module;
    int64_t items;
    {
        std::lock_guard lock(mutex);
        Function* function = live_function(handle);
        if (!function) return kInvalidHandle;
        module = function->module;
        Launch launch{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, current->device, stream};
        if (int error = why_not(launch, *function)) return error;
        items = module->parts ? 0 : *static_cast<int64_t*>(parameters[module->parameters.size()]);
        launch.items = items;
        if (capturing) {
            if (module->parameters.find('v') != std::string::npos) return kInvalidValue;
            graphs.back().push_back(module->parts ? repeated_parts(*module, parameters, grid_x)
                                                  : repeated(*module, parameters, items));
            return kSuccess;
        }
        auto at = launched.try_emplace(function->name).first;
        ++at->second;
        launch.name = at->first.c_str();
        launches.push_back(launch);
    }
    if (module->parts)
        call_parts(*module, static_cast<int64_t*>(parameters[0]), grid_x);
    else
        call(*module, parameters, items);
    return kSuccess;
}

// CUlaunchConfig, without what its attributes ask for.
struct Config {
    unsigned grid[3], block[3], shared;
    void* stream;
};

EXPORT int cuLaunchKernelEx(const Config* c, void* function, void** parameters, void** extra) {
    return cuLaunchKernel(function, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2],
                          c->shared, c->stream, parameters, extra);
}

EXPORT int cuStreamIsCapturing(void*, int* status) {
    if (!current) return kInvalidContext;
    *status = capturing;
    return injected();
}

EXPORT void simulated_begin_capture() {
    std::lock_guard lock(mutex);
    graphs.emplace_back();
    capturing = true;
}

// The number of the graph.
EXPORT int simulated_end_capture() {
    std::lock_guard lock(mutex);
    capturing = false;
    return static_cast<int>(graphs.size()) - 1;
}

EXPORT bool simulated_is_capturing() {
    return capturing;
}

EXPORT void simulated_replay(int graph) {
    for (Node& node : graphs.at(graph)) node();
}

EXPORT int cuGetErrorName(int error, const char** name) {
    auto at = kErrors.find(error);
    *name = at == kErrors.end() ? nullptr : at->second.first;
    return at == kErrors.end() ? kInvalidValue : kSuccess;
}

EXPORT int cuGetErrorString(int error, const char** text) {
    auto at = kErrors.find(error);
    *text = at == kErrors.end() ? nullptr : at->second.second;
    return at == kErrors.end() ? kInvalidValue : kSuccess;
}

// ------------------------------------------------------------------------------------- for the device and for tests

EXPORT int simulated_device_count() {
    return kDevices;
}

// As the runtime has it: without a context, that of device 0 is about to be made current.
EXPORT int simulated_current_device() {
    return current ? current->device : 0;
}

EXPORT void simulated_set_device(int device) {
    current = &contexts[device];
}

EXPORT void simulated_fail_next(int error) {
    std::lock_guard lock(mutex);
    next_failure = error;
}

EXPORT int64_t simulated_launch_count() {
    std::lock_guard lock(mutex);
    return static_cast<int64_t>(launches.size());
}

// False where there were fewer.
EXPORT bool simulated_launch(int64_t index, Launch* launch) {
    std::lock_guard lock(mutex);
    if (index < 0 || index >= static_cast<int64_t>(launches.size())) return false;
    *launch = launches[static_cast<size_t>(index)];
    return true;
}

EXPORT void simulated_forget_launches() {
    std::lock_guard lock(mutex);
    launches.clear();
}
