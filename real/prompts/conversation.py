"""Later turns of conversations: prompts made of user turns and the answers to them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from real.prompts.format import PromptFormat
from real.prompts.left_out import LeftOut
from real.prompts.prompt import Prompt


@dataclass(frozen=True)
class Conversation:
    """How later turns become prompts.

    | field | meaning |
    | --- | --- |
    | form | the format of turns and answers |
    | longest | most tokens of a prompt |
    """

    form: PromptFormat
    longest: int

    def answer(self, token: Sequence[int], end_tokens: Sequence[int]) -> str:
        """The text of an answer, without special tokens and the end token."""
        words = list(token)
        if words and words[-1] in end_tokens:
            words.pop()
        return self.form.tokenizer.decode(words, skip_special_tokens=True)

    def follow(self, first: Prompt, answers: Sequence[str]) -> tuple[Prompt | None, LeftOut]:
        """The prompt of the turn behind so many `answers` of a conversation, and what is left out.

        It is template(turn 1, answer 1, ..., next turn). None where there is no further turn; the
        rest of the conversation is left out where the turn is empty or its prompt is too long.
        """
        turn = len(answers)
        rest = len(first.turns) - turn
        if rest <= 0:
            return None, LeftOut()
        if not first.turns[turn]:
            return None, LeftOut(rest, empty=rest, limit=self.longest)
        token = self.form.turns(first.task, first.turns[: turn + 1], answers)
        if len(token) > self.longest:
            return None, LeftOut(rest, 0, rest, self.longest, len(token))
        read = LeftOut(1, limit=self.longest, longest=len(token))
        return replace(first, id=f"{first.id}#{turn + 1}", token=token), read
