"""What `generate` and `chat` share: a loaded model, and answers shown while they are decoded."""

import signal
import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from types import FrameType
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict
from rich.text import Text

from skipbench.cli.command import Prompted
from skipbench.console import out, say, say_replaced, working

if TYPE_CHECKING:
    from skipbench.decode.answer import Answer, Piece, Stream

COLOURS = ("green", "cyan", "magenta", "yellow", "blue")
Messages = list[dict[str, str]]


class Session:
    """A loaded model with the options by which a command asks it, arguments of its `generate`."""

    def __init__(self, asked: Prompted) -> None:
        from skipbench.language_model import load_settings

        with working("loading the model"):
            self.model = load_settings(asked.model_settings(), asked.method)
        say_replaced(self.model.config.engine.name, self.model.lm)
        config, longest = self.model.config, self.model.lm.max_positions // 2
        usual = config.dataset.encoding["thinking"]
        escapes = (asked.stop or "").replace(r"\n", "\n").replace(r"\t", "\t")
        self.options: dict[str, Any] = {
            **asdict(config.decoding),
            "seed": config.seed,
            "stop": () if asked.stop is None else escapes,
            "chat": asked.chat,
            "thinking": usual if asked.thinking is None else asked.thinking,
            "max_new_tokens": asked.max_new_tokens or min(asked.LENGTH, longest),
        }
        self.system = [{"role": "system", "content": asked.system}] if asked.system else []

    def stream(self, messages: Messages) -> "Stream":
        return self.model.generate([*self.system, *messages], stream=True, **self.options)

    def vanilla(self, answer: "Answer", messages: Messages, quiet: bool = False) -> "list[Answer]":
        """Vanilla's answer, after a line of comparison unless `quiet`; empty after Ctrl-C."""
        if answer.finish == "unfinished":
            return []
        try:
            with working("decoding the same with vanilla"):
                vanilla_model = self.model.with_method("vanilla")
                vanilla = vanilla_model.generate([*self.system, *messages], **self.options)
        except KeyboardInterrupt:
            say("stopped")
            return []
        if not quiet:
            same = "the same tokens"
            if answer.tokens != vanilla.tokens:
                sampled = self.model.config.decoding.temperature != 0
                same = f"other tokens{', as sampling draws them' if sampled else ''}"
            after = answer.tokens_per_s / vanilla.tokens_per_s if vanilla.tokens_per_s else 0.0
            ours, theirs = (len(one.tokens) / (one.seconds or 1) for one in (answer, vanilla))
            whole = ours / theirs if theirs else 0.0
            text = f"{whole:.2f}x of vanilla on this prompt, {after:.2f}x after the first token"
            say(f"{speed_text(vanilla)}\n{text}; {same}", "dim")
        return [vanilla]


def show_stream(stream: "Stream") -> "Answer":
    """Prints an answer while it is decoded, then its speed; returns it, ended by Ctrl-C or not."""
    try:
        with closing(_whole_rounds(stream)) as pieces:
            _write(pieces)
    except KeyboardInterrupt:
        stream.close()
        say("stopped")
    say(speed_text(stream.so_far), "dim")
    return stream.so_far


def _whole_rounds(stream: "Stream") -> Generator["Piece", None, None]:
    """The pieces of `stream`; Ctrl-C is raised between two of them.

    A round that is broken off could leave the method with half of what it learns from it, and the
    next prompt goes on with that. The prefill ends at once, and so does all at a second Ctrl-C.
    """
    usual, pressed = signal.getsignal(signal.SIGINT), False

    def remember(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed or not stream.so_far.tokens:
            raise KeyboardInterrupt
        pressed = True

    # Python allows handlers in the main thread alone
    ours = threading.current_thread() is threading.main_thread() and usual is not None
    if ours:
        signal.signal(signal.SIGINT, remember)
    try:
        for piece in stream:
            yield piece
            if pressed:
                raise KeyboardInterrupt
    finally:
        if ours:
            signal.signal(signal.SIGINT, usual)


def _write(pieces: "Iterator[Piece]") -> None:
    """Pieces in the colour of their source; to a pipe or a file the text as it is."""
    styles = {"": ""}
    try:
        for piece in pieces:
            if out.is_terminal:
                style = styles.setdefault(piece.source, COLOURS[(len(styles) - 1) % len(COLOURS)])
                out.print(Text(piece.text, style), end="", soft_wrap=True)
            else:
                out.file.write(piece.text)
                out.file.flush()
    finally:
        out.file.write("\n")


def speed_text(answer: "Answer") -> str:
    """Counts and speed of an answer in a line."""
    tokens, passes, drafted = len(answer.tokens), answer.rounds, ""
    if answer.drafted:
        drafted = f", {answer.accepted} of {answer.drafted} drafted tokens accepted"
        if {*answer.sources} - {"draft"}:
            ranked = sorted(answer.sources.items(), key=lambda one: -one[1])
            drafted += f" ({', '.join(f'{name} {count}' for name, count in ranked)})"
    return (
        f"{answer.method}: {tokens} token{'s' * (tokens != 1)} in {passes} pass"
        f"{'es' * (passes != 1)}{drafted}, {answer.tokens_per_s:.0f} tokens/s, first after "
        f"{answer.first_token_s:.2f} s"
    )
