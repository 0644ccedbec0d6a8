"""Tables: one model (`model.py`), a builder per kind of table, a writer per format."""
