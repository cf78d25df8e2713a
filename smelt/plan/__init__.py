"""What a compiled graph does at run time, as data: the steps (`steps`) with their verifier and printer, and how a schedule
whose kernels are compiled becomes steps (`build`): whose memory is it (`roots`), where lives end (`liveness`), what lies
where (`memory`), what runs side by side (`together`). `smelt._native.Plan` runs a plan."""
