"""`Rests`: rounds that propose nothing, where looking for drafts costs more than they bring."""

WORTH = 1.03  # price of looking from which rests are worth what is not learned in them
FIRST, LONGEST = 16, 256  # rounds of a rest: each is twice the one before
CREDIT = 0.5  # tokens that a time awake may lose before the next rest
WAKES = 2  # tokens of a match behind which copies alone are drafted, and no rest goes on


class Rests:
    """Counts what the rounds since the last rest brought, in tokens beyond those of rounds that do
    not even look. Both methods return whether the next round rests.

    >>> rests = Rests(price=1.3)  # a round that looks and finds nothing takes 1.3 that do not
    >>> [rests.awake(tokens=1, price=1.0) for _ in range(2)]
    [False, True]
    >>> [rests.rested(match=1), rests.rested(match=2)]
    [True, False]
    """

    def __init__(self, price: float = 1.0) -> None:
        """`price`: of a round that looks and drafts nothing, in rounds that do not look."""
        self.price, self.worth, self.left = price, price > WORTH, 0
        """Rounds of this rest that are left."""
        self._next, self._gained = FIRST, CREDIT

    def awake(self, tokens: int, price: float) -> bool:
        """After a round that looked, by its tokens and its price in rounds that draft nothing."""
        if self.worth:
            self._gained = min(CREDIT, self._gained + tokens - price * self.price)
            if self._gained < 0:
                self.left, self._gained = self._next, CREDIT
                self._next = min(LONGEST, 2 * self._next)
        return self.left > 0

    def rested(self, match: int) -> bool:
        """After a round that did not; `match`: tokens of the longest occurrence of the text's end,
        where copies may begin.
        """
        self.left -= 1
        if match >= WAKES:
            self.left, self._next = 0, FIRST
        return self.left > 0
