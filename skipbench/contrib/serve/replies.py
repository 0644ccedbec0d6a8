"""The bodies of replies, in OpenAI's form."""

import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from transformers.convert_slow_tokenizer import bytes_to_unicode

from skipbench.contrib.serve.requests import Asked
from skipbench.decode.answer import BROKEN, Answer, Piece
from skipbench.decode.sampling import Logprob
from skipbench.metrics.acceptance import speculative_decoding

ALPHABET: dict[int, str] = bytes_to_unicode()  # type: ignore[no-untyped-call]  # transformers
SIGNS = {sign: bytes([byte]) for byte, sign in ALPHABET.items()}  # of byte-level BPE
REASONS = {"eos": "stop", "stop": "stop", "length": "length", "unfinished": "length"}


class Reply:
    """One reply while it is made."""

    def __init__(self, asked: Asked, tokenizer: Any) -> None:
        self.asked, self._tokenizer = asked, tokenizer
        name = f"{'chatcmpl' if asked.chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._own = {"id": name, "created": int(time.time()), "model": asked.body.model}
        self._shown = Counter[int]()  # tokens per choice whose log-probabilities are sent
        self._said = defaultdict[int, bytearray](bytearray)  # text of these tokens

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """The body of a reply that is not streamed."""
        choices = []
        for index, answer in enumerate(answers):
            text: dict[str, Any] = {"text": answer.text}
            if self.asked.chat:
                text = {"message": {"role": "assistant", "content": answer.text, "refusal": None}}
            found = self._logprobs(index, answer.logprobs)
            reason = REASONS[answer.finish]
            choices.append({"index": index, **text, "logprobs": found, "finish_reason": reason})
        return {**self._head("chat.completion"), "choices": choices, **self._counts(answers)}

    def begin(self, index: int) -> list[dict[str, Any]]:
        """Events before the first text of a choice."""
        if not self.asked.chat:
            return []
        return [self._chunk(index, {"delta": {"role": "assistant", "content": ""}}, None, None)]

    def piece(self, index: int, piece: Piece, found: Sequence[Logprob]) -> dict[str, Any]:
        """The event of a piece of text; `found`: of all tokens up to it, if they are wanted."""
        part = {"delta": {"content": piece.text}} if self.asked.chat else {"text": piece.text}
        shown = self._shown[index]
        own = self._logprobs(index, found[shown : shown + len(piece.tokens)])
        return self._chunk(index, part, own, None)

    def end(self, index: int, answer: Answer) -> dict[str, Any]:
        """The last event of a choice."""
        part: dict[str, Any] = {"delta": {}} if self.asked.chat else {"text": ""}
        rest = self._logprobs(index, answer.logprobs[self._shown[index] :])
        return self._chunk(index, part, rest, REASONS[answer.finish])

    def last(self, answers: Sequence[Answer]) -> list[dict[str, Any]]:
        """Events after all choices."""
        if not self.asked.body.stream_options.include_usage:
            return []
        return [{**self._head("chat.completion.chunk"), "choices": [], **self._counts(answers)}]

    def _counts(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """`usage`, and of a single answer `metrics`, as vLLM has it."""
        drafted = [pair for pair in answers[0].per_round if pair[0]] if len(answers) == 1 else []
        found = {"speculative_decoding": speculative_decoding(drafted)} if drafted else None
        return {"usage": usage(answers, self.asked.body.n), "metrics": found}

    def _head(self, kind: str) -> dict[str, Any]:
        """The beginning of a body; `kind`: of a chat's."""
        return self._own | {"object": kind if self.asked.chat else "text_completion"}

    def _chunk(
        self, index: int, part: dict[str, Any], found: Any, reason: str | None
    ) -> dict[str, Any]:
        choice = {"index": index, **part, "logprobs": found, "finish_reason": reason}
        more = {"usage": None} if self.asked.body.stream_options.include_usage else {}
        return {**self._head("chat.completion.chunk"), "choices": [choice], **more}

    def _logprobs(self, index: int, found: Sequence[Logprob]) -> dict[str, Any] | None:
        """Log-probabilities of the next tokens of a choice, if they were asked for."""
        if self.asked.options.get("logprobs") is None or not found:
            return None
        self._shown[index] += len(found)
        tops = [dict(one.top) | {one.token: one.logprob} for one in found]  # the drawn one, too
        if self.asked.chat:
            content = [
                self._token(one.token, one.logprob)
                | {"top_logprobs": [self._token(*pair) for pair in top.items() if one.top]}
                for one, top in zip(found, tops, strict=True)
            ]
            return {"content": content, "refusal": None}
        return {
            "tokens": [self._text(one.token) for one in found],
            "token_logprobs": [one.logprob for one in found],
            # of equal texts the likeliest stays
            "top_logprobs": [{self._text(t): top[t] for t in reversed(top)} for top in tops],
            "text_offset": [self._offset(index, one.token) for one in found],
        }

    def _offset(self, index: int, token: int) -> int:
        """Where the next token of a choice begins, in characters: a part of one where that does."""
        at = len(self._said[index].decode(errors="ignore"))
        self._said[index] += self._bytes(token)
        return at

    def _bytes(self, token: int) -> bytes:
        """The bytes of a token's own text, which may be a part of a character, or none."""
        # decoded behind itself, since a tokenizer drops the space in front of a first token
        ids, plain = [token, token], {"skip_special_tokens": True}
        twice = str(self._tokenizer.decode(ids, **plain))
        if BROKEN not in twice:
            return twice[len(self._tokenizer.decode(ids[:1], **plain)) :].encode()
        piece = str(self._tokenizer.convert_ids_to_tokens(token))
        if piece.startswith("<0x"):  # SentencePiece
            return bytes.fromhex(piece[3:5])
        return b"".join(SIGNS.get(sign, sign.encode()) for sign in piece)

    def _text(self, token: int) -> str:
        text = self._bytes(token).decode(errors="backslashreplace")
        return text or str(self._tokenizer.decode([token]))  # an EOS has a name

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        return {"token": self._text(token), "logprob": logprob, "bytes": [*self._bytes(token)]}


def usage(answers: Sequence[Answer], choices: int) -> dict[str, Any]:
    """Tokens of all prompts and choices."""
    prompt = sum(answer.prompt_tokens for answer in answers[::choices])
    tokens = sum(len(answer.tokens) for answer in answers)
    drafted, accepted = (sum(getattr(a, k) for a in answers) for k in ("drafted", "accepted"))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": tokens,
        "total_tokens": prompt + tokens,
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": max(0, drafted - accepted),
        },
    }
