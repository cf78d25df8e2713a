"""Attention that a program writes out (two products and a softmax), computed by the kernels that torch has for it.

    softmax(q @ k.mT * scale + bias, -1) @ v   ->   the kernel of `scaled_dot_product_attention`

A pass over an aten graph, of a forward or joint, before it is cut and lowered: `fuse_attention`
(`attention_rewrite.py`). `attention_pattern.py` finds the forward, `attention_gradients.py` what a recorded backward
does with it, `attention_bias.py` says what is added to the scores, and `element_maps.py` which elements of which
tensor a view holds. Neither scores nor probabilities are in memory then.

Results are those of the written operators, but for rounding: the scores are not rounded to half precision. Where all scores
of a row are minus infinity, or one is infinite or NaN, softmax gives NaN. Kernels give 0 for a row to all of whose scores
minus infinity is added: these are known from what is added. For the others they return a logarithm of the row's sum that is
no finite number. So such rows are made NaN afterwards, in the copy of the result that the program makes anyway, and the
backward is given NaN for their logarithms.
"""
