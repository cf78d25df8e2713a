"""What users see of compilations: entries and reasons (`inspect.py`), the graphs of a call (`traces.py`), reports
(`explanation.py`; data: `report_data.py`), artifacts (`dump.py`) and logs (`logs.py`)."""
