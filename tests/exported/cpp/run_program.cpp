// Runs calls of programs in a process without Python, for tests/exported/test_cpp.py.
//
//     run_program FILE CALLS RESULTS [THREADS]
//
// CALLS and RESULTS are pickles of torch: a tuple of calls, each (arguments, (name, value)*), and the result of each, or the
// text of its error with its class. With THREADS, so many threads make all calls, which must give the same.
#include <smelt/program.h>
#include <torch/serialize.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

namespace {

std::vector<char> read(const char* path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

c10::IValue call(const smelt::Program& program, const c10::IValue& given) {
    const auto& parts = given.toTupleRef().elements();
    const auto& positional = parts[0].toTupleRef().elements();
    smelt::Program::Keywords keywords;
    for (const c10::IValue& pair : parts[1].toTupleRef().elements())
        keywords.emplace_back(pair.toTupleRef().elements()[0].toStringRef(), pair.toTupleRef().elements()[1]);
    try {
        return program(smelt::Program::Arguments(positional.begin(), positional.end()), keywords);
    } catch (const smelt::InputError& error) {
        return "InputError: " + std::string(error.what());
    }
}

bool same(const c10::IValue& a, const c10::IValue& b) {
    if (a.isTensor()) return b.isTensor() && a.toTensor().equal(b.toTensor());
    if (a.isTuple()) {
        const auto &x = a.toTupleRef().elements(), &y = b.toTupleRef().elements();
        for (size_t i = 0; i < x.size(); ++i)
            if (!same(x[i], y[i])) return false;
        return x.size() == y.size();
    }
    if (!a.isGenericDict()) return a == b;
    auto x = a.toGenericDict(), y = b.toGenericDict();
    for (const auto& entry : x)
        if (!same(entry.value(), y.at(entry.key()))) return false;
    return x.size() == y.size();
}

}  // namespace

int main(int argc, char** argv) {
    try {
        const smelt::Program program = smelt::Program::load(argv[1]);
        const c10::IValue calls = torch::pickle_load(read(argv[2]));
        std::vector<c10::IValue> results;
        for (const c10::IValue& given : calls.toTupleRef().elements()) results.push_back(call(program, given));
        std::vector<std::thread> threads;
        std::atomic<int> wrong{0};
        for (int t = 0; t < (argc > 4 ? std::stoi(argv[4]) : 0); ++t)
            threads.emplace_back([&] {
                for (int round = 0; round < 20; ++round)
                    for (size_t i = 0; i < results.size(); ++i)
                        wrong += !same(call(program, calls.toTupleRef().elements()[i]), results[i]);
            });
        for (std::thread& thread : threads) thread.join();
        if (wrong) return std::fprintf(stderr, "%d calls of threads differ\n", wrong.load()), 1;
        const std::vector<char> data = torch::pickle_save(c10::ivalue::Tuple::create(std::move(results)));
        std::ofstream(argv[3], std::ios::binary).write(data.data(), static_cast<std::streamsize>(data.size()));
        return 0;
    } catch (const smelt::ProgramError& error) {
        std::fprintf(stderr, "ProgramError: %s\n", error.what());
        return 2;
    }
}
