"""Shared by `generate` and `chat`: the model, and an answer shown while it is decoded."""

import json
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.live import Live
from rich.text import Text

from skipbench.cli.commands import Chat, Generate
from skipbench.console import err, out, say, show, working
from skipbench.errors import SkipbenchError

if TYPE_CHECKING:
    from skipbench.api import LanguageModel, Prompt
    from skipbench.decode.answer import Answer, Piece, Stream

COLOURS = ("green", "cyan", "magenta", "yellow", "blue")


Asked = Generate | Chat


def max_new_tokens(asked: Asked, model: "LanguageModel", default: int) -> int:
    """As given, else `default`, but at most half of the model's context."""
    return asked.max_new_tokens or min(default, model.lm.max_positions // 2)


def decoding(asked: Asked, model: "LanguageModel") -> dict[str, Any]:
    """Arguments of `LanguageModel.generate`: sampling, and where the output stops."""
    stop = asked.stop and asked.stop.replace(r"\n", "\n").replace(r"\t", "\t")
    sampling = {**asdict(model.config.decoding), "seed": model.config.seed}
    return {**sampling, "stop": () if stop is None else stop, "chat": asked.chat}


def system_of(asked: Asked) -> list[dict[str, str]]:
    """The system message, before those of the conversation."""
    return [{"role": "system", "content": asked.system}] if asked.system else []


def read_text(asked: Generate) -> str:
    """The prompt: `prompt=`, the bare words, or what is piped in.

    Raises:
        SkipbenchError: there is none.
    """
    text = asked.prompt or " ".join(asked.words)
    if not text and not sys.stdin.isatty():
        text = sys.stdin.read().strip()
    if not text:
        raise SkipbenchError(
            'no prompt; give one, as in generate model=smollm2-135m "Why is the sky blue?", or '
            "pipe a text in"
        )
    return text


def load_model(asked: Asked) -> "LanguageModel":
    """The model, with a line while it loads."""
    from skipbench.api import load_settings

    with working("loading the model"):
        model = load_settings(asked.model_settings(), asked.method)
    for note in model.lm.notes():
        say(note, "dim")
    return model


def show_stream(stream: "Stream") -> "Answer":
    """Prints an answer while it is decoded, then its speed; Ctrl-C ends it.

    Returns:
        What was decoded.
    """
    painted = _Painter()
    try:
        with _whole_rounds(stream) as pieces:
            if out.is_terminal:
                _paint(stream, pieces, painted)
            else:
                _write(pieces)
    except KeyboardInterrupt:
        stream.close()
        say("stopped")
    answer = stream.so_far
    say(speed_text(answer), "dim")
    if out.is_terminal and (legend := painted.legend()):
        err.print(legend)
    return answer


@contextmanager
def _whole_rounds(stream: "Stream") -> Iterator[Iterator["Piece"]]:
    """The pieces of `stream`; Ctrl-C is raised between two of them.

    A round that is broken off could leave the method with half of what it learns from it, and the
    next prompt goes on with that. The prefill ends at once, and so does all at a second Ctrl-C.
    """
    usual = signal.getsignal(signal.SIGINT)
    pressed = False

    def remember(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed or not stream.so_far.tokens:
            raise KeyboardInterrupt
        pressed = True

    def pieces() -> Iterator["Piece"]:
        for piece in stream:
            yield piece
            if pressed:
                raise KeyboardInterrupt

    # Python allows handlers in the main thread alone
    ours = threading.current_thread() is threading.main_thread() and usual is not None
    if ours:
        signal.signal(signal.SIGINT, remember)
    try:
        yield pieces()
    finally:
        if ours:
            signal.signal(signal.SIGINT, usual)


class _Painter:
    """Colours by source, in the order in which sources appear."""

    def __init__(self) -> None:
        self._styles: dict[str, str] = {"": ""}

    def __call__(self, piece: "Piece") -> Text:
        if piece.source not in self._styles:
            self._styles[piece.source] = COLOURS[(len(self._styles) - 1) % len(COLOURS)]
        return Text(piece.text.expandtabs(4), style=self._styles[piece.source])

    def legend(self) -> Text:
        """The sources with their colours."""
        parts = [Text(name, style) for name, style in self._styles.items() if name]
        return Text.assemble(("drafted: ", "dim"), Text(", ").join(parts)) if parts else Text()


def _write(pieces: Iterator["Piece"]) -> None:
    """The text alone, for a pipe or a file."""
    try:
        for piece in pieces:
            out.file.write(piece.text)
            out.file.flush()
    finally:
        out.file.write("\n")


def _paint(stream: "Stream", pieces: Iterator["Piece"], painted: _Painter) -> None:
    """Finished lines scroll; the last one stays live, above a line with the speed."""
    line = Text()
    try:
        with Live(console=out, auto_refresh=False, transient=True) as live:
            live.update(Text("reading the prompt ...", style="dim"), refresh=True)
            for piece in pieces:
                line.append_text(painted(piece))
                rows = [
                    row
                    for part in line.split("\n", allow_blank=True)
                    for row in (part.wrap(out, max(20, out.width - 1)) or [part])
                ]
                for row in rows[:-1]:
                    live.console.print(row)
                line = rows[-1]
                status = Text(speed_text(stream.so_far), style="dim")
                shown = [line, status, *filter(None, [painted.legend()])]
                live.update(Group(*shown), refresh=True)
    finally:  # an answer that is stopped keeps its last line
        out.print(line)


def speed_text(answer: "Answer") -> str:
    """Counts and speed of an answer in a line."""
    drafted = (
        f", {answer.accepted} of {answer.drafted} drafted tokens accepted" if answer.drafted else ""
    )
    tokens, passes = len(answer.tokens), answer.rounds
    return (
        f"{answer.method}: {tokens} token{'s' * (tokens != 1)} in {passes} "
        f"pass{'es' * (passes != 1)}{drafted}, "
        f"{answer.tokens_per_s:.0f} tokens/s, first after {answer.first_token_s:.2f} s"
    )


def vanilla_beside(
    model: "LanguageModel",
    answer: "Answer",
    prompt: "Prompt",
    length: int,
    decoding: Mapping[str, Any],
    quiet: bool = False,
) -> list["Answer"]:
    """Vanilla's answer to the same prompt, after a line with the ratio of the two speeds, unless
    `quiet`; empty where Ctrl-C stopped one of the two.
    """
    if answer.finish == "unfinished":
        return []
    try:
        with working("decoding the same with vanilla"):
            vanilla = model.with_method("vanilla").generate(prompt, length, **decoding)
    except KeyboardInterrupt:
        say("stopped")
        return []
    if not quiet:
        say(_compared(answer, vanilla, decoding["temperature"] == 0), "dim")
    return [vanilla]


def _compared(answer: "Answer", vanilla: "Answer", greedy: bool) -> str:
    """Vanilla's counts, the ratio of the two speeds, and whether the tokens are the same."""
    same = "the same tokens" if answer.tokens == vanilla.tokens else "other tokens"
    why = "" if greedy or answer.tokens == vanilla.tokens else ", as sampling draws them"
    ratio = answer.tokens_per_s / vanilla.tokens_per_s if vanilla.tokens_per_s else 0.0
    return f"{speed_text(vanilla)}\n{ratio:.2f}x of vanilla on this prompt; {same}{why}"


def show_json(answers: Sequence["Answer"]) -> None:
    """One JSON object per line and answer, for machines."""
    for answer in answers:
        show(json.dumps(asdict(answer) | {"tokens_per_s": answer.tokens_per_s}))
