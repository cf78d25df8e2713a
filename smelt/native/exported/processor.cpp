#include "exported/processor.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>

#include "devices/gpu_driver.h"
#include "torch.h"

namespace smelt::exported {
namespace {

const std::string kGpu = "sm_";  // a GPU that code needs, by its compute capability

// Reads with C's functions: torch may have been built with another compiler's streams.
std::set<std::string> flags_of_processor() {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/proc/cpuinfo", "r"), std::fclose);
    char* line = nullptr;
    size_t size = 0;
    std::set<std::string> flags;
    while (file && flags.empty() && getline(&line, &size, file.get()) >= 0) {
        char* rest = nullptr;
        if (std::strncmp(line, "flags", 5) != 0) continue;
        strtok_r(line, ": \t\n", &rest);
        while (const char* word = strtok_r(nullptr, ": \t\n", &rest)) flags.insert(word);
    }
    std::free(line);
    return flags;
}

std::string minor_version(const std::string& version) {
    return version.substr(0, version.find('.', version.find('.') + 1));
}

}  // namespace

std::optional<std::string> lacking(const std::string& triple, const std::vector<std::string>& needs) {
#if defined(__x86_64__) && defined(__linux__)
    if (triple.rfind("x86_64", 0) != 0 || triple.find("linux") == std::string::npos)
        return "its plans are for " + triple;
    static const std::set<std::string> flags = flags_of_processor();
    std::set<std::string> missing;
    for (const std::string& need : needs) {
        if (need.rfind(kGpu, 0) == 0) {
            if (need != kGpu + std::to_string(devices::capability(0)))
                return "its plans are for a GPU " + need;
        } else if (!flags.count(need)) {
            missing.insert(need);
        }
    }
    if (missing.empty()) return {};
    std::string text;
    for (const std::string& flag : missing) text += (text.empty() ? "" : ", ") + flag;
    return "this processor lacks " + text;
#else
    return "its plans are for " + triple;
#endif
}

std::optional<std::string> other_torch(const std::string& version) {
    if (minor_version(version) == minor_version(TORCH_VERSION)) return {};
    return "its plans are for torch " + version + ", this is torch " TORCH_VERSION;
}

}  // namespace smelt::exported
