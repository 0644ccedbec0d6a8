"""Exceptions for what a user can put right; the command line prints them without a traceback."""

LONGEST = 4000
"""Characters of a message, whatever it quotes."""


def printable(text: str) -> str:
    """`text` with everything escaped that could steer a terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class SkipbenchError(Exception):
    """Says which value was wrong, what was allowed, and what to do.

    Its text is one line without control characters, of a bounded length: it may quote files that
    anybody wrote.
    """

    def __str__(self) -> str:
        text = super().__str__()
        if len(text) > LONGEST:
            text = f"{text[: LONGEST // 2]} ... {text[-LONGEST // 4 :]}"
        return printable(text)


def reason_of(error: BaseException) -> str:
    """The text of an error, with its type where it is none of ours."""
    return str(error) if isinstance(error, SkipbenchError) else f"{type(error).__name__}: {error}"


class NotStrictError(SkipbenchError):
    """Bits that depend on which rows share a pass."""


class NotHereError(SkipbenchError):
    """This machine, or results folder, lacks what it takes; tables keep the row with the reason."""
