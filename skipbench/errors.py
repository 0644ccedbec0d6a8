"""Exceptions for what a user can put right; the command line prints them without a traceback."""


class SkipbenchError(Exception):
    """Says which value was wrong, what was allowed, and what to do."""


class NotHereError(SkipbenchError):
    """This machine, or results folder, lacks what it takes; tables keep the row with the reason."""
