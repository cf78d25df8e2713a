"""What a compiled graph does at run time, as data: the steps with their verifier and printer (`steps`), the placement of
temporaries (`memory`), launches side by side (`together`). `codegen` builds plans, `smelt._native.Plan` runs them."""
