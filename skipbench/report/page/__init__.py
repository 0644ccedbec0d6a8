"""One HTML file of all runs, tables and figures of a folder; it needs no network or server."""
