"""What the captured function prints, logs and warns of: the compiled frame writes it, in program order.

Capture itself writes nothing. A handler works out what eager would write (the text of known objects is made at once, the
text of tensors by the compiled frame, see `capture/proxies/text_proxy.py`) and adds a `Call` to the effects. The
decision that something is written, and where to, is guarded. Streams and log handlers of classes that smelt does not
know are refused, since they could change what the function sees later on.
"""
