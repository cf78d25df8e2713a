"""Sliding windows over the planes of images as machine code: depthwise convolutions, maxima and means.

One work item is one plane (one channel of one image):

    copy the plane into scratch memory between borders of padding      so that no access below needs a mask
    for each block of output rows, for each vector of output columns
        for each column j of the window, for each input row
            load the vector once; combine it into every output row of the block that it belongs to
        epilogue, store

Invariants:

* Borders are written once per call: all planes are copied to the same scratch memory between them.
* With a horizontal stride of 2 even and odd columns are stored separately, so that all vectors are contiguous.
* The last block of rows and the last vector of a row overlap those before them where sizes do not divide; they
  recompute the same values. Rows shorter than a vector are masked.
* Sums run in the operands' dtype, column by column of the window.

`window_spec.py` describes a window and which ones are refused, `window_codegen.py` writes and compiles them.
"""
