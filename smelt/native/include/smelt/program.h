// Runs programs that `smelt.export` wrote (docs/export.md) from C++. Needs libtorch 2.11 or newer, C++20 and Linux on x86-64;
// neither Python nor a compiler.
//
//     smelt::Program program = smelt::Program::load("scorer.smelt");
//     at::Tensor y = program({x}).toTensor();
//     c10::IValue z = program({x}, {{"scale", 2.0}});
//
// A file holds machine code: load only files whose programs you would run.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#define SMELT_PUBLIC __attribute__((visibility("default")))

namespace smelt {

// Arguments for which the program was not exported, or that do not fit its signature. The text is that of the error in Python.
class SMELT_PUBLIC InputError : public std::invalid_argument {
  public:
    using std::invalid_argument::invalid_argument;
};

// A file that is no program, is damaged, or does not run here: it is for another version of torch, another platform, or a
// processor with features that this one lacks. Python compiles such a program again; C++ has no compiler, so export the model
// again with the torch and on a processor (or with SMELT_CPU) like those of the machine that runs it.
class SMELT_PUBLIC ProgramError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

// A parameter of the exported call, as in Python's inspect.
struct Parameter {
    enum class Kind : std::uint8_t {
        positional_only,
        positional_or_keyword,
        var_positional,
        keyword_only,
        var_keyword
    };
    std::string name;
    Kind kind;
    bool has_default;
};

// A size that may change between calls: dimension `dimension` of the tensor `of`, from `low` to `high`. `dim` is the name of its
// smelt.Dim, or empty.
struct DynamicSize {
    std::string of, dim;
    std::int64_t dimension, low, high;
};

// An exported call. Copies share the program and its state.
//
// Any number of threads may call a program at once, without a lock of their own. A call uses the tensors that the state holds
// when the call begins; it may see in-place writes of concurrent calls. If the program writes no state (`writes_state`), calls
// do not affect each other. If it writes buffers, their contents after concurrent calls are those of eager calls in several
// threads: writes interleave, and of two calls that replace a buffer the later one wins. Load the program once for each thread
// that needs buffers of its own.
class SMELT_PUBLIC Program {
  public:
    using Arguments = std::vector<c10::IValue>;
    using Keywords = std::vector<std::pair<std::string, c10::IValue>>;

    // Maps the file, verifies its checksums, and links its code. Throws ProgramError, and std::system_error if the file cannot
    // be read.
    static Program load(const std::string& path);

    // The same for a program that was saved with its weights in a safetensors file, which `load` maps, too. It finds weights by
    // name, and throws ProgramError for a missing one and for another dtype or shape. A safetensors file has no checksums.
    static Program load(const std::string& path, const std::string& weights);

    // Calls the program. Arguments are tensors, numbers, strings, None, and tuples, lists and dicts of these, as the model took
    // them at the export. A named tuple or dataclass is passed as a tuple of its fields in their order, or a dict with their
    // names as keys; in the result it is such a dict, unless it is an argument, which is returned as it was passed. Throws
    // InputError; ProgramError if no plan covers the sizes or a plan does not fit its program; and what operators throw.
    //
    // A program with gradients (gradients=True at the export) records the call for autograd: results have a history, which
    // `backward` follows, to arguments and `parameters` that require grad. Without gradients, an argument that requires grad is
    // an InputError, unless grad mode is off.
    c10::IValue operator()(const Arguments& arguments, const Keywords& keywords = {}) const;

    // The program that calls another method of the file. It shares the state. Throws InputError if there is none.
    Program method(const std::string& name) const;
    std::vector<std::string> methods() const;

    // The name of the exported call (of the module's class, of the function or of the method), and what a call takes.
    const std::string& name() const;
    std::vector<Parameter> signature() const;
    std::vector<DynamicSize> dynamic_sizes() const;
    // The conditions on arguments that a call checks besides the metadata of tensors, as text.
    std::vector<std::string> input_checks() const;

    // The parameters, buffers and constants by name; writes to these tensors are visible to later calls, not in the file.
    std::map<std::string, at::Tensor> state() const;
    // The tensors of the state that require grad, in the order of the file. An optimizer may write them between calls.
    std::vector<std::pair<std::string, at::Tensor>> named_parameters() const;
    std::vector<at::Tensor> parameters() const;
    // Whether a call writes or replaces tensors of the state.
    bool writes_state() const;

    // Copies the values into new memory: calls in progress read the old values, later calls the new ones. `parameters`, and
    // what shares their memory, are different: they are written in place, so that an optimizer keeps them, and calls in
    // progress may read old and new values. Tensors that share memory, such as tied weights, keep sharing it. Throws
    // InputError, and replaces nothing, for an unknown name, another size, dtype, device or layout, and a constant that a
    // plan holds.
    void update_weights(const std::map<std::string, at::Tensor>& weights) const;

  private:
    struct Data;
    static Program load_with(const std::string& path, const std::optional<std::string>& weights);
    Program(std::shared_ptr<Data> data, std::size_t method) : data_(std::move(data)), method_(method) {}

    std::shared_ptr<Data> data_;
    std::size_t method_;
};

}  // namespace smelt
