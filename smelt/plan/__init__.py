"""What a compiled graph does at run time, as data: the steps (`steps`) with their verifier, printer and form in bytes, and
the machine code that they name (`code`). `build` makes steps from a schedule whose kernels are compiled: whose memory is it
(`roots`), where lives end (`liveness`), what lies where (`memory`), what runs side by side (`together`). `target` says what
this needs of a device. `executable` hands a plan to `smelt._native.Plan`, which runs it."""
