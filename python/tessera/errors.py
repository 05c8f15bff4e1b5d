"""Failures: one class for each kind, all of them `tessera.Error`.

>>> import tessera
>>> try:
...     tessera.open("no/such/folder")
... except tessera.NotFound as error:
...     print(error.code)
not_found
"""


class Error(Exception):
    """What failed (`message`), where (`file`, `tensor`, `operation`, `rank`: None where unknown) and what to do
    (`hint`). `code` is the word that the commands' error document has."""

    code = "error"

    def __init__(self, message, *, file=None, tensor=None, operation=None, rank=None, hint=None):
        super().__init__(message)
        self.message, self.file, self.tensor = message, file, tensor
        self.operation, self.rank, self.hint = operation, rank, hint

    def __str__(self):
        where = [part for part in (self.file, f"rank {self.rank}" if self.rank is not None else None, self.operation)
                 if part]
        out = f'tensor "{self.tensor}": {self.message}' if self.tensor else str(self.message)
        if where:
            out += f" [{', '.join(where)}]"
        return f"{out}\nhint: {self.hint}" if self.hint else out


class InvalidArgument(Error, ValueError):
    """The call asks for something that has no meaning."""
    code = "invalid_argument"


class NotFound(Error):
    """The path is not there, or several checkpoints lie below it."""
    code = "not_found"


class AlreadyExists(Error):
    """The result is there already, and `force` was not given."""
    code = "already_exists"


class Corrupt(Error):
    """Bytes contradict the format, a part is missing, or the content is unsafe."""
    code = "corrupt"


class Unsupported(Error):
    """Well formed, and not something that Tessera handles."""
    code = "unsupported"


class OutOfRange(Error, IndexError):
    """An index or a slice past the end."""
    code = "out_of_range"


class IoError(Error):
    """The operating system failed a read or a write."""
    code = "io"


class ResourceExhausted(Error):
    """Memory or disk do not suffice."""
    code = "resource_exhausted"


class Timeout(Error, TimeoutError):
    """Another rank did not answer."""
    code = "timeout"


class Cancelled(Error):
    """Stopped on request."""
    code = "cancelled"


class Internal(Error):
    """A defect of Tessera's own."""
    code = "internal"


class UnknownTensor(InvalidArgument, KeyError):
    """No tensor has that name; the hint has the nearest one."""


_BY_NUMBER = [None, InvalidArgument, NotFound, AlreadyExists, Corrupt, Unsupported, OutOfRange, IoError,
              ResourceExhausted, Timeout, Cancelled, Internal]


def make(number, message, **fields):
    kind = _BY_NUMBER[number] if 0 < number < len(_BY_NUMBER) else Error
    return kind(message or "no memory for the message", **fields)
