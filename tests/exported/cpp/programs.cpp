// The programs of this folder as one, which is the one that its file is called: torch's headers take most of the time that
// each takes to compile.
#include <smelt/program.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

std::vector<char> read(const char* path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

#include "fuzz_program.cpp"
#include "run_program.cpp"
#include "train_program.cpp"

int main(int argc, char** argv) {
    const std::string path = argv[0], name = path.substr(path.rfind('/') + 1);
    if (name == "run_program") return run_program(argc, argv);
    return name == "train_program" ? train_program(argv) : fuzz_program(argv);
}
