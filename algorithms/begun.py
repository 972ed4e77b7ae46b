"""Steps that were begun before somebody waits for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Generic, TypeVar

from uzipmpi.transports.transfer import Transfer

__all__ = ["Ahead", "Begun"]

T = TypeVar("T")


class Begun(Generic[T]):
    """Steps up to the first that has to be waited for.

    Parameters
    ----------
    steps
        A generator as :class:`~uzipmpi.algorithms.stream.Stream` takes it.
    """

    def __init__(self, steps: Generator[Transfer | None, None, T]) -> None:
        self._steps = self._all(steps)
        next(self._steps)

    def rest(self) -> Generator[Transfer | None, None, T]:
        """Take the other steps; return what all of them return."""
        return (yield from self._steps)

    def close(self) -> None:
        """Take no more steps."""
        self._steps.close()

    @staticmethod
    def _all(
        steps: Generator[Transfer | None, None, T],
    ) -> Generator[Transfer | None, None, T]:
        """Take all steps, with a halt before the first that yields is waited for."""
        try:
            waiting = next(steps)
        except StopIteration as end:
            yield None
            result: T = end.value
            return result
        try:
            yield None  # the halt
            yield waiting
        except BaseException as error:
            # It was not waited for, or has failed.
            if isinstance(error, GeneratorExit):
                steps.close()
                raise
            steps.throw(error)
        return (yield from steps)


class Ahead:
    """Steps of which the next may be begun while a GPU is at one; they end in their order.

    What has begun is brought to its end before anybody waits for a peer, which may wait for it.
    """

    def __init__(self) -> None:
        self._begun: deque[Begun[None]] = deque()

    def __len__(self) -> int:
        return len(self._begun)

    def begin(self, steps: Generator[Transfer | None, None, None]) -> None:
        """Take steps up to the first that has to be waited for."""
        self._begun.append(Begun(steps))

    def finish(self, left: int = 0) -> Generator[Transfer | None, None, None]:
        """Bring those begun first to their end, until so many are left."""
        while len(self._begun) > left:
            yield from self._begun.popleft().rest()
            yield None

    def close(self) -> None:
        """Take no more steps."""
        while self._begun:
            self._begun.popleft().close()
