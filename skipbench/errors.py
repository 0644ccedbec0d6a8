"""The one exception for what a user can put right; the command line prints its text without a
traceback.
"""


class SkipbenchError(Exception):
    """Says which value was wrong, what was allowed, and what to do."""


class NotHereError(SkipbenchError):
    """What this machine, or this results folder, has not what it takes for; a table keeps the row
    and says why.
    """
