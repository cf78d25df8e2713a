"""What people look at: what a compiled callable holds (`inspect.py`), the graphs of a call (`traces.py`), what
became of it (`explanation.py`, as a page: `html_report.py`), the progress line, logs, the page of reasons."""
