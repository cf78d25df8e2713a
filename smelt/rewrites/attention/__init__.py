"""Fusion of unfused attention (two products and a softmax) into torch's attention kernels.

    softmax(q @ k.mT * scale + bias, -1) @ v   ->   the kernel of `scaled_dot_product_attention`

A pass over an aten graph, of a forward or joint, before it is partitioned and lowered: `fuse_attention`
(`attention_rewrite.py`). `attention_pattern.py` matches the forward, `attention_gradients.py` the recorded backward;
`attention_bias.py` combines the tensors added to the scores, and `element_maps.py` records which elements of which
tensor a view holds. Neither scores nor probabilities are materialized then.

Results are those of the original operators up to rounding: the scores are not rounded to half precision. If all scores
of a row are minus infinity, or one is infinite or NaN, softmax gives NaN. Kernels give 0 for a row to all of whose
scores minus infinity is added: the bias shows these rows. For the others they return a logarithm of the row's sum that
is not finite. The rewrite sets such rows to NaN afterwards, in the copy of the result that the program makes anyway,
and passes NaN for their logarithms to the backward.
"""
