"""What tests are written with; no test is here. From the whole compiler down to one kernel:

whole programs, eager and compiled
    agreement      a function or a sequence of calls: results, arguments, aliasing, exceptions, random state; tolerances
    accuracy       errors against float64, beside eager's
    branching      rows for programs with branches that tensors decide
    catalogue      `@program`, a row of tests/catalogue: everything reachable is compared, the graphs are counted
    loop_programs  rows for programs with a loop that a tensor ends
    subclasses     subclasses of tensors whose handlers note what they are asked
    wrappers       traceable wrapper subclasses, and what such tensors hold
    settings       settings of torch that a test must not leave behind
    snapshot       every place that can be reached from an object, as facts that can be compared
    training       `@both`, a program that trains: the same lines eager and compiled
    data_sizes     programs whose sizes data decide, called with many data
    generate       random programs as source, and how they shrink
    generate_worlds what they do to objects around them, and what changes between their calls
    generate_sizes random programs that are valid for all sizes of their inputs
    sized_operators what the operators of such programs are written with
    sized_pointwise operators of such programs: elementwise ones
    sized_views    views
    sized_complex  complex numbers
    sized_moves    what moves elements
    sized_reductions reductions, and what is computed of rows
    sized_products products, attention, windows
    sized_statements tensors made of sizes, writes, conditions
    sized_values   their variables, with sizes as expressions
    generated_sizes such a program run eager and compiled, at several sets of sizes
    generated      a random program run eager and compiled, and where they differ
    models         the ten benchmark models, tiny
    operator_database torch's operators with sample inputs
    threads        functions side by side
    attention      attention that is written out, on GPUs: operands, errors beside eager's, what became of graphs
    products       matrix products for GPUs, with tensors for them
    attention_tiles generated attention, with tensors, and as loops
    cudnn          convolutions of the simulated device, as cuDNN has them
    contests       contests of generated kernels with ATen, on the simulated device
    user_kernels   programs that launch kernels of Triton
    wrong_lowering an operator that is compiled wrongly
    processes      programs that need a process of their own
    gpu_processes  programs in such a process that has a GPU, or the simulated device
    mutations      programs whose entries are stored, and mutations of them
    exported       exported programs in such a process, which has not imported the compiler
    inner_graphs   models with graphs inside of graphs, as programs
    stored_programs models whose programs in tests/exported/stored later versions must load
    simulated      tests marked `simulated_cuda`, in a process that has the device of tests/simulated

one stage, on example tensors
    captured       a call captured and replayed, without backend and emission
    emitted        captured frames made by hand, and their compiled frames
    guarded        a small world, and the changes of it that each guard must notice
    traced         the graphs of a function
    symbolic       graphs with symbols for sizes
    sizes          functions traced once for all sizes
    symbolic_kernels  kernels with symbols for sizes, compiled once and run at many sizes
    sized_kernels  the same for GPUs, run by Triton's interpreter
    sized_programs small programs over sizes that change
    lowered_at     programs that were lowered for symbols, at sizes, and machine code made once for all of them
    interpreted    Triton's interpreter, whose reductions take blocks at a time
    joints         the joint graph of a function, its partition, and gradients through it
    differentiable two custom autograd functions, and random functions for hypothesis
    scheduled      the schedule of a function, run by the reference interpreter
    kernel_interpreter the reference of kernels: torch operations on index grids
    schedule_interpreter the reference of schedules
    triton_launcher printed kernels launched by Triton, on a GPU or in its interpreter
    compiled       a function compiled by the backend alone
    hosts          the target that a test states: the width of vectors, generated products
    kernels        small kernels written by hand, and how to run them
    printed        kernels that are printed as Triton: one of each kind, and those of programs
    random_words   Philox, in numpy
    values         tensors of every dtype for tests of single operators

pages, torch and the source
    reports        data of HTML reports, small and large
    browser        Chromium, and a page in it that must ask for nothing and complain of nothing
    pages          the pages, README.md and docs/, as programs
    generated_pages pages that are printed from tables of smelt
    sources        imports, cycles, private names, uses of `Any`
"""
