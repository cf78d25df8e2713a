"""Sliding windows over the planes of images as machine code: depthwise convolutions, maxima and means.

One work item is one plane (one channel of one image):

    copy the plane into scratch memory between borders of padding      so that no access below needs a mask
    for each block of output rows, for each vector of output columns
        for each column j of the window, for each input row
            load the vector once; combine it into every output row of the block that it belongs to
        epilogue, store

What always holds:

* Borders are written once per call: planes are all copied to the same place between them.
* With a horizontal stride of 2 even and odd columns are kept apart, so that all vectors are contiguous.
* The last block of rows and the last vector of a row overlap those before them where sizes do not divide; they
  compute the same values again. Rows shorter than a vector are masked.
* Sums run in the operands' dtype, column by column of the window.

`window_spec.py` describes a window and says which ones are refused, `window_codegen.py` writes and compiles them.
"""
