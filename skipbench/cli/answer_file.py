"""`generate prompts=F out=G`: one answer per line, resumed where they end."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skipbench.console import progress, say
from skipbench.data.chat import pin_day
from skipbench.data.own import prompts as read_prompts
from skipbench.data.rows import Row
from skipbench.errors import SkipbenchError
from skipbench.runs.files import append_line, read_lines, writing
from skipbench.runs.lock import alone
from skipbench.runs.provenance import hashed
from skipbench.runs.reading import MALFORMED, read_bytes

if TYPE_CHECKING:
    from skipbench.cli.answers import Session
    from skipbench.decode.answer import Answer


def answer_file(session: "Session", prompts: Path, out: Path) -> None:
    """Decodes the prompts that `out` has no answer to. Raises SkipbenchError for files that cannot
    be read or written, and where `out` holds answers to other prompts or of other settings.
    """
    rows, model = read_prompts(str(prompts), None, 0, False), session.model
    config, options = model.config, session.options
    asked = [asdict(config.model), str(config.engine.name), config.engine.strict, options]
    settings = hashed([*json.loads(json.dumps(asked, default=str)), session.system])[:16]
    with _alone(out):
        done = _done(out, rows, settings)
        dated = "strftime_now" in str(getattr(model.tokenizer, "chat_template", ""))
        day = pin_day(model.tokenizer, _day(out)) if dated else None
        if done:
            say(f"{out} has {done} of {len(rows)} answers; going on", "dim")
        with progress(prompts.name, len(rows), done) as advance:
            for number, row in enumerate(rows[done:], done + 1):
                said = [*row.messages] or [{"role": "user", "content": row.prompt}]
                try:
                    answer = model.generate([*session.system, *said], **options)
                except SkipbenchError as error:
                    where = f"{prompts} prompt {number} ({row.id})"
                    raise SkipbenchError(f"{where}: {error}") from error
                append_line(out, json.dumps(_line(row, settings, answer, day), ensure_ascii=False))
                advance(f"{answer.tokens_per_s:.0f} tokens/s")
    say(f"{len(rows)} answers in {out}")


def _line(row: Row, settings: str, answer: "Answer", day: str | None) -> dict[str, Any]:
    """A line of the file: nothing that another run of the same would say otherwise, such as time,
    but the `day` that the model's chat template writes. A surrogate, which a file cannot hold, is
    in no text that a tokenizer makes.
    """
    asked = {"messages": row.messages} if row.messages else {"prompt": row.prompt}
    found = {"text": answer.text, "tokens": answer.tokens, "finish": answer.finish}
    dated = {"date": day} if day else {}
    return {"id": row.id, **asked, **found, **dated, "settings": settings}


def _day(out: Path) -> str | None:
    """The day of the answers that are there."""
    lines = read_lines(out)
    return json.loads(lines[0][1]).get("date") if lines else None


@contextlib.contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Makes the file, and holds it for this process."""
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        file = out.open("a")
    with file, alone(file.fileno(), out, out):
        yield


def _done(out: Path, rows: list[Row], settings: str) -> int:
    """How many answers are there; the beginning of a next one is cut off."""
    lines = read_lines(out)
    for (number, line), row in zip(lines, rows, strict=False):
        try:
            found = json.loads(line)
            same = found["id"] == row.id and found["settings"] == settings
            same = same and found.get("prompt", row.prompt) == row.prompt
            same = same and found.get("messages", [*row.messages]) == [*row.messages]
        except MALFORMED:
            same = False
        if not same:
            raise _foreign(out, number)
    if len(lines) > len(rows):
        raise SkipbenchError(f"{out} has {len(lines)} answers to {len(rows)} prompts")
    torn = (read_bytes(out) or b"")[sum(len(line) + 1 for _, line in lines) :]
    following = [json.dumps({"id": row.id}, ensure_ascii=False)[:-1] for row in rows[len(lines) :]]
    begins = "".join(following[:1]).encode()
    if torn[: len(begins)] != begins[: len(torn)]:
        raise _foreign(out, len(lines) + 1)
    return len(read_lines(out, repair=True))


def _foreign(out: Path, number: int) -> SkipbenchError:
    return SkipbenchError(
        f"{out} line {number} is no answer to prompt {number} of these prompts with these "
        "settings; name another file with out=, or remove this one"
    )
