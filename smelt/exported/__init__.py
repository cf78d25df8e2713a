"""Exported programs: a captured call as a file that runs in another process, without the compiler.

`export_call.py` captures and compiles. The other modules are what a program needs to run; none of them imports the compiler.
"""
