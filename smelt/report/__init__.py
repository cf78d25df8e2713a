"""What people look at: what a compiled callable holds (`inspect.py`), what became of a call (`explanation.py`), the progress
line, logs, the page of reasons, the HTML report (`page.py`)."""
