"""Schemas of `conf/dataset`."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from omegaconf import II, MISSING


class Truncate(Enum):
    """What happens to a prompt that does not fit: `refuse` it, cut its `left` end off, or its `end` but for `keep`."""

    refuse = "refuse"
    left = "left"
    end = "end"


class Chat(Enum):
    """The form of a prompt: plain text (`none`), the tokenizer's chat `template`, or `vicuna`'s as text."""

    none = "none"
    template = "template"
    vicuna = "vicuna"


@dataclass
class Dataset:
    _target_: str = MISSING
    name: str = MISSING
    scorer: str = "none"
    max_new_tokens: int = 128
    truncate: Truncate = Truncate.refuse
    keep: Any = 0
    """With `truncate=end`: how many tokens at the end stay, or the text that they are counted of."""
    reserve: int = 0
    context: int | None = None
    """Tokens that prompt, output and `reserve` share, if fewer than the model's context."""
    chat: Chat = Chat.none
    thinking: bool | None = None
    """Passed to a chat template that knows `enable_thinking`."""
    seed: int = 0


@dataclass
class MiniDataset(Dataset):
    _target_: str = "skipbench.data.datasets.mini"
    family: str = MISSING
    size: int = 300
    bodies: str | None = None


@dataclass
class HubDataset(Dataset):
    """A dataset of the papers. What differs from paper to paper stands in `variants`, and `prompt` chooses one of them."""

    hub: str = MISSING
    config: str | None = None
    split: str = "test"
    revision: str = MISSING
    columns: dict[str, str] = MISSING
    path: str | None = None
    prompt: str = MISSING
    variants: dict[str, dict[str, Any]] = MISSING
    scorer: str = II("variant:scorer,none")
    max_new_tokens: int = II("variant:max_new_tokens")
    truncate: Truncate = II("variant:truncate,refuse")
    keep: Any = II("variant:keep,0")
    reserve: int = II("variant:reserve,0")
    context: int | None = II("variant:context,null")
    chat: Chat = II("variant:chat,none")
    thinking: bool | None = II("variant:thinking,null")
    size: int | None = II("variant:size,null")
    seed: int = II("variant:seed,0")
    shuffle: bool = II("variant:shuffle,true")
    shots: int = II("variant:shots,0")
    shots_split: str = "train"
    """Where shots come from, and the prompts of a search; the same as `split` where there is no other."""
    shots_path: str | None = None


@dataclass
class TinyStories(HubDataset):
    _target_: str = "skipbench.data.datasets.tinystories"
    prefix_words: int = 30


@dataclass
class Stream(Dataset):
    _target_: str = "skipbench.data.datasets.stream"
    size: int = 500
    parts: dict[str, Any] = MISSING


@dataclass
class HumanEval(Dataset):
    _target_: str = "skipbench.data.humaneval.humaneval"
    prompt: str = "plain"
    size: int | None = None
    shuffle: bool = False
    samples_per_task: int = 1
