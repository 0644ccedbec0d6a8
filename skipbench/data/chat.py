"""Instructions and conversations."""

import itertools
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from skipbench.data.draw import Where
from skipbench.data.rows import Example
from skipbench.errors import SkipbenchError

PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
# The eight categories of MT-bench, which Spec-Bench holds as one subtask.
MT_BENCH = frozenset(
    ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
)
VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions. "
)
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_CLOCK = re.compile(r"""strftime_now\((['"])(.*?)\1\)""")
History = Sequence[tuple[str, str]]  # prompts and answers of the turns before one


class Question(Struct):
    turns: list[str]
    category: str


class Numbered(Question):
    id: int


class Named(Question):
    id: str


class Instruction(Struct):
    instruction: str
    input: str


def as_text(history: History, prompt: str, chat: str) -> str:
    """A prompt after the turns before it as text: plain, or with `vicuna` in the form of Vicuna."""
    if chat == "vicuna":
        said = (f"USER: {asked} ASSISTANT: {answer.strip()}</s>" for asked, answer in history)
        return f"{VICUNA}{''.join(said)}USER: {prompt} ASSISTANT:"
    # An answer follows its prompt as it was made, so that the model reads on in its own text.
    return "".join(f"{asked}{answer}\n\n" for asked, answer in history) + prompt


def as_messages(history: History, last: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The turns before the last messages, and these, for a chat template."""
    messages = list[dict[str, Any]]()
    for asked, answer in history:
        messages += [{"role": "user", "content": asked}]
        messages += [{"role": "assistant", "content": answer.strip()}]
    return [*messages, *map(dict, last)]


def plain_message(message: Any) -> dict[str, Any]:
    """A message whose content is a text: its parts, one below the other; null, or left out, beside
    `tool_calls`. Raises SkipbenchError for another form.
    """
    called = isinstance(message, Mapping) and message.get("tool_calls")
    needed = {"role"} if called else {"role", "content"}
    if not (isinstance(message, Mapping) and needed <= message.keys()):
        raise SkipbenchError(
            f"a message is {str(message)[:80]!r}; wanted a dict with 'role' and 'content'"
        )
    content = message.get("content")
    if isinstance(content, list) and all(isinstance(part, Mapping) for part in content):
        texts = [part.get("text") for part in content]
        content = "\n".join(texts) if all(isinstance(text, str) for text in texts) else content
    if not isinstance(content, str) and not (content is None and called):
        parts = "or a list of {'type': 'text', 'text': ...}"
        raise SkipbenchError(f"content={str(content)[:80]}; wanted a text, {parts}")
    return {**message, "content": content}


def plain_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """Messages where there is no chat template: contents, and calls of tools as JSON."""
    parts = ((m["content"], m.get("tool_calls")) for m in messages)
    said = ((text, json.dumps(calls) if calls else "") for text, calls in parts)
    return "\n\n".join(filter(None, itertools.chain(*said)))


def pin_day(tokenizer: Any, day: str | None = None) -> str:
    """Makes a chat template that writes a date (`strftime_now`, as Llama 3.2's) write this one, as
    2026-11-27, by default today, so that prompts of a run that goes on later are the same.
    """
    tokenizer.template_day = day = day or datetime.now(UTC).date().isoformat()
    return day


def dated(tokenizer: Any, more: Mapping[str, Any]) -> dict[str, Any]:
    """What a template is given, `more`, with the pinned day in the place of the calls of its clock
    in the template's text: transformers hands no function to a template.
    """
    day = getattr(tokenizer, "template_day", None)
    template = more.get("chat_template") or getattr(tokenizer, "chat_template", None)
    if day is None or "strftime_now" not in str(template):
        return {**more}
    text = tokenizer.get_chat_template(more.get("chat_template"), more.get("tools"))
    now = datetime.fromisoformat(day)
    return {**more, "chat_template": _CLOCK.sub(lambda m: repr(now.strftime(m[2])), text)}


def mt_bench(**where: Any) -> list[Example]:
    """MT-bench: two turns per question, grouped by category; the size counts questions."""
    source = Where(**where)
    return _balanced(_conversations(Numbered, source), source.size)


def spec_bench(tasks: Sequence[str] | None = None, **where: Any) -> list[Example]:
    """Spec-Bench (Xia et al., 2024): six subtasks, MT-bench with two turns; counts questions.
    Raises SkipbenchError for `tasks`, the subtasks to take, that are not there.
    """
    source, names = Where(**where), dict.fromkeys(MT_BENCH, "mt-bench")
    questions = _conversations(Numbered, source, tasks=names)
    there = sorted({turns[0].groups["task"] for turns in questions})
    if unknown := sorted({*(tasks or ())}.difference(there)):
        raise SkipbenchError(f"dataset.tasks={unknown}; wanted some of {', '.join(there)}")
    wanted = tasks or there
    return _balanced([q for q in questions if q[0].groups["task"] in wanted], source.size)


def speed_bench(leave_out: bool, **where: Any) -> list[Example]:
    """SPEED-Bench (arXiv:2604.09557), grouped by category; the throughput configurations by tier of
    entropy. The size counts questions. Rows with a placeholder in place of their text are left out
    with `leave_out`, else refused with a SkipbenchError.
    """
    source = Where(**where)
    group = "entropy" if str(source.config).startswith("throughput") else "task"
    questions = _conversations(Named, source, group)
    sound = [turns for turns in questions if not any(PLACEHOLDER in t.prompt for t in turns)]
    if len(sound) < len(questions) and not (leave_out and sound):
        raise SkipbenchError(
            f"{len(questions) - len(sound)} of {len(questions)} questions of {source.name} hold "
            "a placeholder. Fill them in with prepare_data.py of specdec_bench (github.com/NVIDIA/"
            "Model-Optimizer): dataset.path=FILE; or leave them out: dataset.leave_out=true"
        )
    return _balanced(sound, source.size)


def _conversations(
    kind: type[Numbered] | type[Named],
    source: Where,
    group: str = "task",
    tasks: Mapping[str, str] | None = None,
) -> list[list[Example]]:
    """The turns of every question; `tasks` renames categories."""
    conversations = []
    for row in source.draw(kind, whole=True)[0]:
        category, turns, conversation = row.fields.category, row.fields.turns, list[Example]()
        for number, text in enumerate(turns, 1):
            name = f"{row.name}-{row.fields.id}" + (f"/{number}" if number > 1 else "")
            groups = {group: (tasks or {}).get(category, category)}
            if len(turns) > 1 and group == "task":
                groups["turn"] = str(number)
            after = conversation[-1].id if conversation else None
            question = conversation[0].id if conversation else ""
            one = Example(name, text, groups=groups, after=after, question=question)
            conversation.append(replace(one, source=row.source))
        conversations.append(conversation)
    return conversations


def _balanced(questions: list[list[Example]], size: int | None) -> list[Example]:
    """All questions, or `size` of them drawn from the groups in turns: a file holds one group after
    the other. A smaller size is a prefix of a larger one.
    """
    if size is not None:
        ranks: dict[str, Iterator[int]] = defaultdict(itertools.count)
        questions = sorted(questions, key=lambda turns: next(ranks[str(turns[0].groups)]))
    return [row for turns in questions[:size] for row in turns]


def alpaca(**where: Any) -> list[Example]:
    """Alpaca's instructions in the wording that its authors trained on (Taori et al., 2023)."""
    rows = []
    for row in Where(**where).draw(Instruction, may_be_empty=("input",))[0]:
        context = given = ""
        if more := row.fields.input:
            context = ", paired with an input that provides further context"
            given = f"### Input:\n{more}\n\n"
        text = (
            f"Below is an instruction that describes a task{context}. "
            "Write a response that appropriately completes the request.\n\n"
            f"### Instruction:\n{row.fields.instruction}\n\n{given}### Response:"
        )
        rows.append(row.row(text))
    return rows
