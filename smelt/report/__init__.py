"""Reports: the contents of a compiled callable (`inspect.py`), the graphs of a call (`traces.py`), explanations
(`explanation.py`; as a page, `html_report.py`), the progress line, logs, and the page of reasons."""
