"""Fake tensors: metadata, aliases and version counters without data.

`fake_tensor.py` has the tensor class, `meta_results.py` the result of an operator on fakes (computed on meta tensors,
then cached), `constant_folding.py` the values of fakes that depend on constants only. `returned_views.py` and
`version_counters.py` restore, on the results of a compiled graph, the view relations and version counters that eager's
results have.
"""
