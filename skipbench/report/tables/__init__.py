"""Tables: one model (`model.py`), a builder per kind, a writer per format."""
