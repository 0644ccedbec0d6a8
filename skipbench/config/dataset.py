"""Schemas of `conf/dataset`."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from omegaconf import II, MISSING

Truncate = StrEnum("Truncate", ["refuse", "left", "end"])
"""A prompt that does not fit: `refuse` it, cut its `left` end off, or its `end` but `keep`."""
Chat = StrEnum("Chat", ["none", "auto", "template", "vicuna"])
"""The form of a prompt; `auto` is the tokenizer's chat `template` where it has one."""


@dataclass
class Dataset:
    _target_: str = MISSING
    name: str = MISSING
    """Its name in records and tables."""
    scorer: str = "none"
    """How completions are scored: rouge, bleu, exact match, pass@k, or none."""
    max_new_tokens: int = 128
    """Most tokens to decode per prompt."""
    truncate: Truncate = Truncate.refuse
    """What happens to a prompt that does not fit."""
    keep: Any = 0
    """With `truncate=end`: tokens that stay at the end, or a text of as many tokens."""
    reserve: int = 0
    """Tokens of the context left free, such as for the rows of a tree."""
    context: int | None = None
    """Tokens that prompt, output and `reserve` share, if fewer than the model's context."""
    chat: Chat = Chat.none
    """The form of a prompt: none, template, vicuna, or auto, the template where there is one."""
    thinking: bool | None = None
    """Passed to a chat template that knows `enable_thinking`."""
    seed: int = 0
    """Seed by which rows and shots are drawn."""


@dataclass
class MiniDataset(Dataset):
    _target_: str = "skipbench.data.datasets.mini"
    family: str = MISSING
    """Which generator: mini-stories, mini-math, mini-code or mini-summary."""
    size: int = 300
    """Rows to generate."""


@dataclass
class HubDataset(Dataset):
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
    max_new_tokens: int = II("variant:max_new_tokens")
    truncate: Truncate = II("variant:truncate,refuse")
    keep: Any = II("variant:keep,0")
    reserve: int = II("variant:reserve,0")
    context: int | None = II("variant:context,null")
    chat: Chat = II("variant:chat,none")
    thinking: bool | None = II("variant:thinking,null")
    size: int | None = II("variant:size,null")
    """Rows to draw; null takes all."""
    seed: int = II("variant:seed,0")
    shuffle: bool = II("variant:shuffle,true")
    """Draws rows at random instead of in the order of the file."""
    shots: int = II("variant:shots,0")
    """Solved examples before each prompt."""
    shots_split: str = "train"
    """Split of shots and of a search's prompts; the same as `split` where there is no other."""
    shots_path: str | None = None
    """A local file for the shots."""


@dataclass
class TinyStories(HubDataset):
    _target_: str = "skipbench.data.datasets.tinystories"
    prefix_words: int = 30
    """Words of a story that are the prompt."""


@dataclass
class LongText(HubDataset):
    _target_: str = "skipbench.data.summaries.long_text"
    min_words: int = 0
    """Words that a text has at least; shorter ones are left out. What is too long, `context` cuts.
    """


@dataclass
class SpeedBench(HubDataset):
    _target_: str = "skipbench.data.chat.speed_bench"
    leave_out: bool = False
    """Leaves out the rows whose text NVIDIA may not hand on; false refuses them."""


@dataclass
class SpecBench(HubDataset):
    _target_: str = "skipbench.data.chat.spec_bench"
    tasks: list[str] | None = None
    """Subtasks, such as mt-bench and qa; null takes all six."""


@dataclass
class Stream(Dataset):
    _target_: str = "skipbench.data.datasets.stream"
    size: int = 500
    """Rows per task."""
    parts: dict[str, Any] = MISSING
    """The datasets of the tasks, in order."""


@dataclass
class HumanEval(Dataset):
    _target_: str = "skipbench.data.humaneval.humaneval"
    prompt: str = "plain"
    """Wording, sample and length: plain, or as the papers swift or self-sd have them."""
    size: int | None = None
    """Tasks; null takes all."""
    shuffle: bool = False
    """Draws rows at random instead of in the order of the file."""
    samples_per_task: int = 1
    """Completions per task; 10 for pass@10."""


@dataclass
class Sampled(Dataset):
    """Rows that are on every machine, of which a sample is drawn."""

    size: int | None = None
    """Rows to draw; null takes all."""
    shuffle: bool = True
    """Draws rows at random instead of in their order."""


@dataclass
class OwnPrompts(Sampled):
    _target_: str = "skipbench.data.own.prompts"
    path: str = MISSING
    """Your file: jsonl or parquet with `prompt` or `messages`, or txt, one prompt per line."""
    shuffle: bool = False
