"""What is wrong with a graph document, in a form that a person, a program and a test can use."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar, Final

from core.errors import ForgeError

PROBLEM_LIMIT: Final = 100  # nobody reads more, and a document of 20,000 nodes can be wrong 20,000 times


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to correct.

    code:    stable, one per rule
    path:    where in the document as it was written, `nodes[2].consumes[0].artifact`; empty for the whole document
    message: what is wrong, one sentence
    hint:    what to write instead; may be empty
    """

    code: str
    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.path or 'document'}: {self.message}{hint} [{self.code}]"


class DocumentInvalid(ForgeError):
    """The graph document breaks its contract. Correct what is listed; nothing was written.

    problems: at most PROBLEM_LIMIT, ordered by path
    omitted:  how many more there are
    """

    code: ClassVar[str] = "document_invalid"
    http_status: ClassVar[int] = 422

    def __init__(self, problems: Sequence[Problem], *, omitted: int = 0) -> None:
        self.problems = tuple(problems)
        self.omitted = omitted
        super().__init__(self._summary(), problems=[asdict(problem) for problem in self.problems], omitted=self.omitted)

    def _summary(self) -> str:
        total = len(self.problems) + self.omitted
        noun = "problem" if total == 1 else "problems"
        note = f"; only the first {len(self.problems)} are listed" if self.omitted else ""
        return f"The graph document has {total} {noun}{note}. First: {self.problems[0]}"

    def __reduce__(self) -> tuple[object, ...]:
        """Exceptions are rebuilt from ``args``, which hold the sentence only; without this none survives a pickle."""
        return _rebuilt, (self.problems, self.omitted)


def _rebuilt(problems: Sequence[Problem], omitted: int) -> DocumentInvalid:
    return DocumentInvalid(problems, omitted=omitted)
