"""`Rests`: rounds that propose nothing, where looking for drafts costs more than they bring."""

WORTH = 1.03  # price of looking from which rests are worth what is not learned in them
FIRST, LONGEST = (
    16,
    256,
)  # rounds of a rest, the first and the longest: each is twice the one before
CREDIT = 1.0  # tokens that a time awake may lose before the next rest
WAKES = 4  # tokens of a match that end a rest


class Rests:
    """Counts what the rounds since the last rest brought, in tokens beyond those of rounds that do
    not even look.

    >>> rests = Rests(price=1.25)  # a round that looks and finds nothing takes 1.25 that does not
    >>> for _ in range(5):
    ...     rests.awake(tokens=1, price=1.0)
    >>> rests.left
    16
    """

    def __init__(self, price: float = 1.0) -> None:
        """`price`: of a round that looks and drafts nothing, in rounds that do not look."""
        self.price, self.left = price, 0
        self._next, self._gained = FIRST, CREDIT

    def awake(self, tokens: int, price: float) -> None:
        """A round that looked, its tokens, and its price in rounds that look and draft nothing."""
        if self.price <= WORTH:
            return
        self._gained = min(CREDIT, self._gained + tokens - price * self.price)
        if self._gained < 0:
            self.left, self._gained = self._next, CREDIT
            self._next = min(LONGEST, 2 * self._next)

    def rested(self, match: int) -> bool:
        """Whether this round rests; `match`: tokens of the longest occurrence of the text's end."""
        if match >= WAKES:
            self.left, self._next = 0, FIRST
        self.left -= self.left > 0
        return self.left > 0
