"""Output of the captured function: prints, logs and warnings, which the compiled frame writes in program order.

Capture writes nothing. A handler determines what eager would write (text of known objects is formatted at once, text of
tensors by the compiled frame, see `capture/proxies/text_proxy.py`) and adds a `Call` to the effects. The decision to write,
and the destination, are guarded. Streams and log handlers of unknown classes are refused: they could change what the
function observes later.
"""
