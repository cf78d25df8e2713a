// Whether plans of a target run here.
#pragma once
#include <optional>
#include <string>
#include <vector>

namespace smelt::exported {

// The reason why code for a platform and with these features (Linux's names) does not run here; nothing if it runs.
std::optional<std::string> lacking(const std::string& triple, const std::vector<std::string>& needs);

// The same for plans of a version of torch.
std::optional<std::string> other_torch(const std::string& version);

}  // namespace smelt::exported
