"""`generate`: the answer to a prompt, or one per line of a file, resumed where they end."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from skipbench.bench.prompts import chat_form
from skipbench.cli.answers import Session, show_stream
from skipbench.cli.commands import Generate
from skipbench.config.catalog import as_choices
from skipbench.console import progress, say, show
from skipbench.data.chat import pin_day, plain_text
from skipbench.data.own import prompts as read_prompts
from skipbench.data.rows import Example
from skipbench.errors import SkipbenchError
from skipbench.runs.files import append_line, read_lines, writing
from skipbench.runs.lock import alone
from skipbench.runs.provenance import hashed
from skipbench.runs.reading import MALFORMED, read_bytes

if TYPE_CHECKING:
    from skipbench.decode.answer import Answer


def run_generate(asked: Generate) -> None:
    """Answers the prompt of the command line or of stdin."""
    text = asked.prompt or " ".join(asked.words)
    if asked.prompts or asked.out:
        if text or asked.compare or asked.json or not (asked.prompts and asked.out):
            raise SkipbenchError(
                "prompts=FILE and out=FILE go together, without a prompt, --compare and --json"
            )
        answer_file(Session(asked), Path(asked.prompts), Path(asked.out))
        return
    if len(asked.words) > 1 and (meant := as_choices(asked.words[0])):
        raise SkipbenchError(f"{asked.words[0]!r} stands before the prompt; write {meant[0]}")
    if not text and not sys.stdin.isatty():
        text = sys.stdin.read().strip()
    if not text:
        raise SkipbenchError(
            'no prompt; give one, as in generate model=smollm2-135m "Why is the sky blue?", or '
            "pipe a text in"
        )
    session, messages = Session(asked), [{"role": "user", "content": text}]
    stream = session.stream(messages)
    answer = stream.answer if asked.json else show_stream(stream)
    if asked.json:
        show(_as_json(answer))
    for other in session.vanilla(answer, messages, asked.json) if asked.compare else ():
        if asked.json:
            show(_as_json(other))


def _as_json(answer: "Answer") -> str:
    return json.dumps(asdict(answer) | {"tokens_per_s": answer.tokens_per_s})


def answer_file(session: Session, prompts: Path, out: Path) -> None:
    """Decodes the prompts that `out` has no answer to. Raises SkipbenchError for files that cannot
    be read or written, and where `out` holds answers to other prompts or of other settings.
    """
    rows, model = read_prompts(str(prompts), None, 0, False), session.model
    config, options = model.config, session.options
    asked = [msgspec.to_builtins(config.model), config.engine.name, config.engine.strict, options]
    settings = hashed([*json.loads(json.dumps(asked, default=str)), session.system])[:16]
    plain = chat_form(model.tokenizer, options.get("chat", "auto")) == "none"
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    with alone(out, out):
        done = _done(out, rows, settings)
        dated = "strftime_now" in str(getattr(model.tokenizer, "chat_template", ""))
        before = json.loads(read_lines(out)[0][1]) if done else {}
        day = pin_day(model.tokenizer, before.get("date")) if dated else None
        if done:
            say(f"{out} has {done} of {len(rows)} answers; going on", "dim")
        with progress(prompts.name, len(rows), done) as advance:
            for number, row in enumerate(rows[done:], done + 1):
                messages = [*row.messages] or [{"role": "user", "content": row.prompt}]
                messages = [*session.system, *messages]
                given = {"prompt": plain_text(messages)} if plain else {"messages": messages}
                try:
                    answer = model.generate(messages, **options, **row.template)
                except SkipbenchError as error:
                    where = f"{prompts} prompt {number} ({row.id})"
                    raise SkipbenchError(f"{where}: {error}") from error
                line = {"id": row.id, **given, **row.template, **_fields_of(answer, settings, day)}
                append_line(out, json.dumps(line, ensure_ascii=False))
                advance(f"{answer.tokens_per_s:.0f} tokens/s")
    say(f"{len(rows)} answers in {out}")


def _fields_of(answer: "Answer", settings: str, day: str | None) -> dict[str, Any]:
    """Of a line of the file: nothing that another run of the same would say otherwise, such as
    time, but the `day` that the model's chat template writes. A surrogate, which a file cannot
    hold, is in no text that a tokenizer makes.
    """
    found = {"text": answer.text, "tokens": answer.tokens, "finish": answer.finish}
    return {**found, **({"date": day} if day else {}), "settings": settings}


def _done(out: Path, rows: list[Example], settings: str) -> int:
    """How many answers are there; the beginning of a next one is cut off."""
    lines, answers = read_lines(out), [(row.id, settings) for row in rows]
    try:
        found = [json.loads(line) for _, line in lines]
        same = [(one["id"], one["settings"]) for one in found] == answers[: len(found)]
    except MALFORMED:
        same = False
    torn = (read_bytes(out) or b"")[sum(len(line) + 1 for _, line in lines) :]
    if not same or torn[:7] != b'{"id": '[: len(torn)]:
        raise SkipbenchError(
            f"{out} holds other lines than answers to these prompts with these settings; name "
            "another file with out=, or remove this one"
        )
    return len(read_lines(out, repair=True))
