"""`DatasetConfig`: a dataset, its prompt form and its scorer, with the keys of `conf/dataset`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
from omegaconf import II, MISSING

from skipbench.config.build import instantiate
from skipbench.config.configurable import Natural, Positive, Settings, kind_of, typed

Truncate = Literal["refuse", "left", "end"]
"""A prompt that does not fit: `refuse` it, cut its `left` end off, or its `end` but `keep`."""
Chat = Literal["none", "auto", "template", "vicuna"]
"""The form of a prompt; `auto` is the tokenizer's chat `template` where it has one."""
CHATS = get_args(Chat)
FORM = ("max_new_tokens", "truncate", "keep", "reserve", "context", "chat", "thinking")
"""Keys of a dataset that decide how a row becomes token ids."""


class DatasetConfig(Settings, frozen=True, forbid_unknown_fields=False):
    """What all datasets have; a function of one's own may take more keys."""

    node: Mapping[str, Any] = {}
    """All keys, and `_target_`, the function that makes the rows."""
    name: str = MISSING
    """Its name in records and tables."""
    scorer: str = "none"
    """How completions are scored: rouge, bleu, exact match, pass@k, or none."""
    max_new_tokens: Positive = 128
    """Most tokens to decode per prompt."""
    truncate: Truncate = "refuse"
    """What happens to a prompt that does not fit."""
    keep: Any = 0
    """With `truncate=end`: tokens that stay at the end, or a text of as many tokens."""
    reserve: Natural = 0
    """Tokens of the context left free, such as for the rows of a tree."""
    context: Positive | None = None
    """Tokens that prompt, output and `reserve` share, if fewer than the model's context."""
    chat: Chat = "none"
    """The form of a prompt: none, template, vicuna, or auto, the template where there is one."""
    thinking: bool | None = None
    """Passed to a chat template that knows `enable_thinking`."""
    size: Positive | None = None
    """Rows to draw; null takes all."""
    seed: int = 0
    """Seed by which rows and shots are drawn."""

    @staticmethod
    def of(node: Mapping[str, Any]) -> "DatasetConfig":
        """The dataset of a node. Raises SkipbenchError for a value of another type."""
        plain = {k: v for k, v in node.items() if k != "node"}
        made: DatasetConfig = typed(plain, kind_of(node, KINDS), "dataset")
        plain = msgspec.to_builtins(made)
        return msgspec.structs.replace(made, node={k: plain.get(k, v) for k, v in node.items()})

    def but(self, **changes: object) -> "DatasetConfig":
        """With other values of these keys."""
        return self.of({**self.node, **changes})

    @property
    def target(self) -> str:
        """Dotted path of the function that makes the rows."""
        return str(self.node["_target_"])

    @property
    def streamed(self) -> dict[str, "DatasetConfig"]:
        """The datasets of a stream, by name."""
        return {task: self.of(part) for task, part in self.node.get("parts", {}).items()}

    @property
    def may_change(self) -> bool:
        """True for rows of a local file, or made by a function outside of skipbench; those of the
        hub are pinned by their revision.
        """
        if (path := self.node.get("path")) is not None:
            return Path(path).is_file()
        return not ("hub" in self.node or self.target.startswith("skipbench."))

    @property
    def encoding(self) -> Mapping[str, Any]:
        """Keyword arguments of `encode`: length, truncation and chat form."""
        return {key: self.node[key] for key in FORM}

    def rows(self, limit: int | None, seed_offset: int = 0) -> list[Any]:
        """The rows: all of them, or the first `limit`. Raises SkipbenchError if unreadable.

        Args:
            limit: in the units of `size`: instances, conversations, or instances of each task.
            seed_offset: added to the seed, for rows that are not those of a run.
        """
        arguments = self._arguments(seed_offset)
        if limit is not None and "size" in arguments:
            arguments |= {"size": limit if self.size is None else min(limit, self.size)}
        # Rows that Hydra passes on would come out as configurations.
        parts = {task: of._arguments(seed_offset) for task, of in self.streamed.items()}
        tasks = {task: instantiate(part) for task, part in parts.items()}
        make = instantiate(arguments, _partial_=True)
        rows: list[Any] = make(parts=tasks) if tasks else make()
        return rows

    def _arguments(self, seed_offset: int) -> dict[str, object]:
        """Arguments of the dataset's function but `parts`; `name` only for rows of the hub."""
        left_out = {*FORM, "scorer", "variants", "run_limit", "parts"}
        left_out |= set() if "hub" in self.node else {"name"}
        left_out |= {"seed"} if "parts" in self.node else set()  # a stream draws nothing itself
        # in the order of the file the rows would be those of the run
        drawn = {"seed": self.seed + seed_offset} | ({"shuffle": True} if seed_offset else {})
        return {k: drawn.get(k, v) for k, v in self.node.items() if k not in left_out}

    def order(self, limit: int | None) -> int | str | None:
        """What of `limit` the order of rows depends on: questions of a benchmark of chats come by
        turns of their groups, unless all are taken.
        """
        whole = limit is None and self.size is None
        return "whole" if whole and self.target.endswith("_bench") else None

    def for_search(self, limit: int | None) -> "DatasetConfig":
        """The dataset of a search for a skip set of a run with this `limit`: with `run_limit`, the
        rows to avoid.
        """
        return self.but(run_limit=limit)

    def search_rows(self, count: int) -> tuple[list[Any], int]:
        """The prompts of a search on what `for_search` returned, and how many the run decodes too.

        Raises SkipbenchError for a dataset that cannot be read.
        """
        if "run_limit" not in self.node:
            return self.rows(count, seed_offset=1000), 0
        of_run = {row.prompt for row in self.rows(self.node["run_limit"])}
        # mini datasets generate their rows: no more than needed, all only if prompts come twice
        for size in (count + len(of_run), None):
            rows = [row for row in self.rows(size, seed_offset=1000) if row.after is None]
            # stable: rows of the run come last
            rows = sorted(rows, key=lambda row: row.prompt in of_run)[:count]
            if not (shared := sum(row.prompt in of_run for row in rows)):
                break
        return rows, shared


class MiniDataset(DatasetConfig, frozen=True):
    family: Literal["mini-stories", "mini-math", "mini-code", "mini-summary"] = MISSING
    """Which generator."""
    size: Positive = 300
    """Rows to generate."""


class HubDataset(DatasetConfig, frozen=True):
    """A dataset of the papers, which differ by `variants`; `prompt` chooses one of them."""

    hub: str = MISSING
    """Hub id."""
    config: str | None = None
    """Configuration of the hub dataset."""
    split: str = "test"
    """Split that rows come from."""
    revision: str = MISSING
    """Pinned commit of the hub dataset."""
    columns: dict[str, str] = MISSING
    """What the dataset's columns are called here."""
    path: str | None = None
    """A local file in the hub's columns instead of the hub: jsonl or parquet."""
    prompt: str = MISSING
    """Wording, shots, sample and length as one paper has them, one of `variants`."""
    variants: dict[str, dict[str, Any]] = MISSING
    """By name: the values of the keys below as one paper has them."""
    scorer: str = II("variant:scorer,none")
    max_new_tokens: Positive = II("variant:max_new_tokens")
    truncate: Truncate = II("variant:truncate,refuse")
    keep: Any = II("variant:keep,0")
    reserve: Natural = II("variant:reserve,0")
    context: Positive | None = II("variant:context,null")
    chat: Chat = II("variant:chat,none")
    thinking: bool | None = II("variant:thinking,null")
    size: Positive | None = II("variant:size,null")
    seed: int = II("variant:seed,0")
    shuffle: bool = II("variant:shuffle,true")
    """Draws rows at random instead of in the order of the file."""
    shots: Natural = II("variant:shots,0")
    """Solved examples before each prompt."""
    shots_split: str = "train"
    """Split of shots and of a search's prompts; the same as `split` where there is no other."""
    shots_path: str | None = None
    """A local file for the shots."""

    def for_search(self, limit: int | None) -> DatasetConfig:
        """The training split, of shots as well; without one, the rows that the run leaves."""
        path, split = self.shots_path, self.shots_split
        if path != self.path if path else not self.path and split != self.split:
            return self.but(path=path, split=split)
        return super().for_search(limit)


class TinyStories(HubDataset, frozen=True):
    prefix_words: Positive = 30
    """Words of a story that are the prompt."""


class LongText(HubDataset, frozen=True):
    min_words: int = 0
    """Words that a text has at least; shorter ones are left out. What is too long, `context` cuts.
    """


class SpeedBench(HubDataset, frozen=True):
    leave_out: bool = False
    """Leaves out the rows whose text NVIDIA may not hand on; false refuses them."""


class SpecBench(HubDataset, frozen=True):
    tasks: list[str] | None = None
    """Subtasks, such as mt-bench and qa; null takes all six."""


class Stream(DatasetConfig, frozen=True):
    size: Positive = 500
    """Rows per task."""
    parts: dict[str, Any] = MISSING
    """The datasets of the tasks, in order."""

    def order(self, limit: int | None) -> int | None:
        """A stream takes so many of each task."""
        return limit

    def for_search(self, limit: int | None) -> DatasetConfig:
        """Each task's own."""
        size = self.size if limit is None else min(limit, self.size or 0)
        return self.but(parts={t: of.for_search(size).node for t, of in self.streamed.items()})

    def search_rows(self, count: int) -> tuple[list[Any], int]:
        """So many of each task."""
        parts = [task.search_rows(count) for task in self.streamed.values()]
        return [row for rows, _ in parts for row in rows], sum(shared for _, shared in parts)


class HumanEval(DatasetConfig, frozen=True):
    prompt: Literal["plain", "swift", "self-sd"] = "plain"
    """Wording, sample and length: plain, or as the papers swift or self-sd have them."""
    size: Positive | None = None
    """Tasks; null takes all."""
    shuffle: bool = False
    """Draws rows at random instead of in the order of the file."""
    samples_per_task: Positive = 1
    """Completions per task; 10 for pass@10."""

    def for_search(self, limit: int | None) -> DatasetConfig:
        """As of other datasets, each task once."""
        return self.but(samples_per_task=1, run_limit=limit)


class Sampled(DatasetConfig, frozen=True):
    """Rows that are on every machine, of which a sample is drawn."""

    shuffle: bool = True
    """Draws rows at random instead of in their order."""


class OwnPrompts(Sampled, frozen=True):
    path: str = MISSING
    """Your file: jsonl or parquet with `prompt` or `messages`, or txt, one prompt per line."""
    shuffle: bool = False


KINDS = (
    *(DatasetConfig, MiniDataset, HubDataset, TinyStories, LongText, SpeedBench, SpecBench),
    *(Stream, HumanEval, Sampled, OwnPrompts),
)
