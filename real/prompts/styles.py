"""Plain-text styles that a base model continues, by task."""

from collections.abc import Sequence

STYLES = {"math": "Question: {}\nAnswer:", "code": "{}"}
DIALOGUE = "User: {}\n\nAssistant:"
"""The style of tasks that STYLES does not list."""


def styled(task: str, turns: Sequence[str], answers: Sequence[str] = ()) -> str:
    """User turns in their task's style, each but the last with its answer.

    A later turn follows behind an empty line: `User: a\\n\\nAssistant: b\\n\\nUser: c ...`.
    """
    style = STYLES.get(task, DIALOGUE)
    replies = [*answers, ""]
    return "\n\n".join(style.format(turn) + reply for turn, reply in zip(turns, replies))
