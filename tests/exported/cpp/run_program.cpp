// Runs calls of programs in a process without Python, for tests/exported/test_cpp.py.
//
//     run_program FILE CALLS RESULTS [THREADS [WEIGHTS]]
//
// CALLS and RESULTS are pickles of torch: a tuple of calls, each (arguments, (name, value)*) and perhaps the name of a method and
// weights by name, with which the program is updated first; and the result of each, or the text of its error with its class.
// With THREADS, that many threads make all calls, and their results must be equal. WEIGHTS is a pickle of two sets of weights:
// while the program is updated to one after the other, each thread repeats the first call, which must give the result of one of
// the sets, and after the last update that of the last set. Weights beside the program are in FILE.safetensors.
#include <smelt/program.h>
#include <torch/serialize.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace {

std::map<std::string, at::Tensor> weights_of(const c10::IValue& dict) {
    std::map<std::string, at::Tensor> weights;
    for (const auto& entry : dict.toGenericDict()) weights[entry.key().toStringRef()] = entry.value().toTensor();
    return weights;
}

c10::IValue call(const smelt::Program& program, const c10::IValue& given) {
    const auto& parts = given.toTupleRef().elements();
    const auto& positional = parts[0].toTupleRef().elements();
    smelt::Program::Keywords keywords;
    for (const c10::IValue& pair : parts[1].toTupleRef().elements())
        keywords.emplace_back(pair.toTupleRef().elements()[0].toStringRef(), pair.toTupleRef().elements()[1]);
    try {
        if (parts.size() > 3) program.update_weights(weights_of(parts[3]));
        const smelt::Program called = parts.size() > 2 && parts[2].isString() ? program.method(parts[2].toStringRef()) : program;
        return called(smelt::Program::Arguments(positional.begin(), positional.end()), keywords);
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

// Whether threads see one set of weights or the other, and all of them the last one.
bool update_while_running(const smelt::Program& program, const c10::IValue& given, const c10::IValue& sets, int n_threads) {
    c10::IValue wanted[2];
    for (size_t i = 0; i < 2; ++i) {
        program.update_weights(weights_of(sets.toTupleRef().elements()[i]));
        wanted[i] = call(program, given);
    }
    std::atomic<bool> is_over{false};
    std::atomic<int> wrong{0}, calls{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < n_threads; ++t)
        threads.emplace_back([&] {
            while (!is_over) {
                const c10::IValue found = call(program, given);
                wrong += !same(found, wanted[0]) && !same(found, wanted[1]);
                ++calls;
            }
            wrong += !same(call(program, given), wanted[1]);
        });
    for (size_t i = 0; i < 200 || calls < 100; ++i)
        program.update_weights(weights_of(sets.toTupleRef().elements()[i % 2]));
    program.update_weights(weights_of(sets.toTupleRef().elements()[1]));
    is_over = true;
    for (std::thread& thread : threads) thread.join();
    return wrong == 0 && !same(wanted[0], wanted[1]);
}

}  // namespace

int run_program(int argc, char** argv) {
    try {
        const std::string beside = std::string(argv[1]) + ".safetensors";
        const bool is_beside = std::ifstream(beside).good();
        const smelt::Program program = is_beside ? smelt::Program::load(argv[1], beside) : smelt::Program::load(argv[1]);
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
        if (argc > 5 && !update_while_running(program, calls.toTupleRef().elements()[0], torch::pickle_load(read(argv[5])),
                                              std::stoi(argv[4])))
            return std::fprintf(stderr, "threads saw other weights\n"), 1;
        const std::vector<char> data = torch::pickle_save(c10::ivalue::Tuple::create(std::move(results)));
        std::ofstream(argv[3], std::ios::binary).write(data.data(), static_cast<std::streamsize>(data.size()));
        return 0;
    } catch (const smelt::ProgramError& error) {
        std::fprintf(stderr, "ProgramError: %s\n", error.what());
        return 2;
    }
}
