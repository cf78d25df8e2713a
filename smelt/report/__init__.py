"""What people look at: what a compiled callable holds (`inspect.py`), what became of a call (`explanation.py`) and its HTML
report (`page.py`), the progress line, the page of reasons."""
