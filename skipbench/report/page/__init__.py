"""The page: every run, table and figure of a results folder in one HTML file that needs neither
network nor server.
"""
