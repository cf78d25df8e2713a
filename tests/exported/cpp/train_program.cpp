// Trains a program with gradients in a process without Python, for tests/exported/test_cpp.py.
//
//     train_program FILE BATCHES RESULTS STEPS RATE
//
// BATCHES is a pickle of torch: a tuple of batches, each a tuple of arguments, used in turn. The loss is the result of the
// program, or the first of several. RESULTS: the losses, the state after training, and the gradients of the first step.
#include <smelt/program.h>
#include <torch/optim/adamw.h>
#include <torch/serialize.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

int train_program(char** argv) {
    const smelt::Program program = smelt::Program::load(argv[1]);
    const c10::IValue batches = torch::pickle_load(read(argv[2]));
    torch::optim::AdamW optimizer(program.parameters(), torch::optim::AdamWOptions(std::stod(argv[5])));
    c10::List<double> losses;
    c10::Dict<std::string, at::Tensor> state, gradients;
    for (int step = 0; step < std::stoi(argv[4]); ++step) {
        const auto& all = batches.toTupleRef().elements();
        const auto& batch = all[static_cast<size_t>(step) % all.size()].toTupleRef().elements();
        const c10::IValue result = program(smelt::Program::Arguments(batch.begin(), batch.end()));
        const at::Tensor loss = result.isTensor() ? result.toTensor() : result.toTupleRef().elements()[0].toTensor();
        optimizer.zero_grad();
        loss.backward();
        for (const auto& [name, tensor] : program.named_parameters())
            if (step == 0 && tensor.grad().defined()) gradients.insert(name, tensor.grad().clone());
        optimizer.step();
        losses.push_back(loss.item<double>());
    }
    for (const auto& [name, tensor] : program.state()) state.insert(name, tensor.detach());
    const std::vector<char> data = torch::pickle_save(c10::ivalue::Tuple::create(losses, state, gradients));
    std::ofstream(argv[3], std::ios::binary).write(data.data(), static_cast<std::streamsize>(data.size()));
    return 0;
}
