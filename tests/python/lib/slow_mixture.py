# SPDX-License-Identifier: Apache-2.0
"""The order of a mixture in plain Python, written from the description in headrace/sampler.h and not from the C code:
with fractions, and with lists of whole passes."""

from __future__ import annotations

import math
from fractions import Fraction

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_SECRET = [0x2D358DCCAA6C78A5, 0x8BB84B93962EACC9, 0x4B33A62ED433D4A3, 0x4D5A2DA51DE1AA47]
RUN = 64
PERIOD_MAX = 65536


def deviation_bound(count: int) -> Fraction:
    """Returns Tijdeman's bound for so many sources."""
    return 1 - Fraction(1, 2 * count - 2) if count > 1 else Fraction(0)


class SlowMixture:
    """An epoch. sizes, weights: by name. length: of the epoch, or "first" or "all"."""

    def __init__(
        self, sizes: dict[str, int], weights: dict[str, Fraction], seed: int, epoch: int, length: int | str
    ) -> None:
        self.names, self.sizes, self.seed, self.epoch = list(sizes), list(sizes.values()), seed & _MASK, epoch
        self.shares = _shares([weights[name] for name in self.names])
        self.period = sum(self.shares)
        self._turns = _turns(self.shares)
        self._passes: dict[tuple[int, int], list[int]] = {}
        self.length = length if isinstance(length, int) else self._length(length)

    def source_at(self, walk: int) -> int:
        """Returns the source of a position of the walk."""
        return self._turns[walk % self.period]

    def count_before(self, walk: int, source: int) -> int:
        """Returns how many positions of the walk before this one have a source."""
        cycles, rest = divmod(walk, self.period)
        return cycles * self.shares[source] + self._turns[:rest].count(source)

    def _length(self, until: str) -> int:
        ends = []
        for source, size in enumerate(self.sizes):
            cycles = (size - 1) // self.shares[source]
            walk = cycles * self.period
            while self.count_before(walk, source) < size:
                walk += 1
            ends.append(walk)
        return min(ends) if until == "first" else max(ends)

    def indices(self) -> list[int]:
        """Returns the indices of the epoch."""
        begin, total, found = self.epoch * self.length, sum(self.sizes), []
        first_pass = [self.count_before(begin, source) // size for source, size in enumerate(self.sizes)]
        for run in range(-(-self.length // RUN)):
            size = min(RUN, self.length - run * RUN)
            walks = [begin + run * RUN + place for place in self._shuffle(run, size)]
            places = [(source := self.source_at(walk), self.count_before(walk, source)) for walk in walks]
            for source, counted in self._in_order(places):
                number, at = divmod(counted, self.sizes[source])
                index = sum(self.sizes[:source]) + self._pass(source, number)[at]
                found.append(index + (number - first_pass[source]) * total)
        return found

    def _in_order(self, places: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Sorts the samples of each source of which a pass ends within the run."""
        counts: dict[int, list[int]] = {}
        for source, counted in places:
            counts.setdefault(source, []).append(counted)
        for source, mine in counts.items():
            if min(mine) // self.sizes[source] != max(mine) // self.sizes[source]:
                mine.sort()
        return [(source, counts[source].pop(0)) for source, _ in places]

    def _shuffle(self, run: int, size: int) -> list[int]:
        words = _words(_seeded((_mix(_seeded(self.seed, self.epoch) + _GOLDEN & _MASK)), run), 4)
        return [_walk(place, size, lambda number: _encrypt_run(words, number)) for place in range(size)]

    def _pass(self, source: int, number: int) -> list[int]:
        if (source, number) not in self._passes:
            size = self.sizes[source]
            rounds = 6 if size > 4096 else 10 if size > 32 else 16
            keys = _words(_seeded(_seeded(self.seed, _hash(self.names[source].encode())), number), rounds)
            left = math.isqrt(size - 1) + 1
            right = -(-size // left)
            encrypt = lambda index: _encrypt(keys, left, right, index)  # noqa: E731
            self._passes[source, number] = [_walk(index, size, encrypt) for index in range(size)]
        return self._passes[source, number]


def _shares(weights: list[Fraction]) -> list[int]:
    scale = math.lcm(*(one.denominator for one in weights))
    whole = [int(one * scale) for one in weights]
    exact = [one // math.gcd(*whole) for one in whole]
    if sum(exact) <= PERIOD_MAX:
        return exact
    given: dict[int, int] = {}
    while True:
        left = PERIOD_MAX - len(given)
        others = [i for i in range(len(whole)) if i not in given]
        total = sum(whole[i] for i in others)
        small = [i for i in others if Fraction(whole[i] * left, total) < 1]
        if not small:
            break
        given.update(dict.fromkeys(small, 1))
    parts = {i: Fraction(whole[i] * left, total) for i in others}
    given.update({i: math.floor(part) for i, part in parts.items()})
    by_remainder = sorted(others, key=lambda i: (math.floor(parts[i]) - parts[i], i))
    for i in by_remainder[: PERIOD_MAX - sum(given.values())]:
        given[i] += 1
    found = [given[i] for i in range(len(whole))]
    return [one // math.gcd(*found) for one in found]


def _turns(shares: list[int]) -> list[int]:
    period, count = sum(shares), len(shares)
    if count == 1:
        return [0] * period
    parts = [Fraction(share, period) for share in shares]
    least = Fraction(1, 2 * count - 2)
    given = [0] * count
    turns = []
    for position in range(1, period + 1):
        lacks = [position * part - one for part, one in zip(parts, given, strict=True)]
        able = [i for i in range(count) if lacks[i] >= least]
        turns.append(min(able, key=lambda i: ((1 - least - lacks[i]) / parts[i], i)))
        given[turns[-1]] += 1
    return turns


# ---- numbers ----


def _mix(word: int) -> int:
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & _MASK
    return word ^ (word >> 31)


def _seeded(seed: int, epoch: int) -> int:
    return _mix(_mix(seed + _GOLDEN & _MASK) ^ epoch)


def _words(state: int, count: int) -> list[int]:
    return [_mix(state + (number + 1) * _GOLDEN & _MASK) for number in range(count)]


def _walk(number: int, size: int, encrypt: object) -> int:
    while True:
        number = encrypt(number)  # type: ignore[operator]
        if number < size:
            return number


def _encrypt_run(words: list[int], number: int) -> int:
    left, right = number % 8, number // 8
    for word in words:
        left = (left + (word >> 3 * right)) % 8
        right = (right + (word >> 3 * (8 + left))) % 8
    return left + 8 * right


def _encrypt(keys: list[int], left_size: int, right_size: int, number: int) -> int:
    left, right = number % left_size, number // left_size
    for first, second in zip(keys[::2], keys[1::2], strict=True):
        left = (left + (_mix(right ^ first) * left_size >> 64)) % left_size
        right = (right + (_mix(left ^ second) * right_size >> 64)) % right_size
    return left + left_size * right


def _fold(a: int, b: int) -> int:
    product = a * b
    return (product ^ (product >> 64)) & _MASK


def _hash(data: bytes) -> int:
    """Returns the hash of a name of up to 16 bytes (wyhash)."""
    seed, count = _fold(_SECRET[0], _SECRET[1]), len(data)
    if count >= 4:
        middle = count >> 3 << 2
        four = [int.from_bytes(data[at : at + 4], "little") for at in (0, middle, count - 4, count - 4 - middle)]
        a, b = four[0] << 32 | four[1], four[2] << 32 | four[3]
    else:
        a, b = data[0] << 16 | data[count >> 1] << 8 | data[-1], 0
    return _fold(_SECRET[0] ^ count, _fold(a ^ _SECRET[1], b ^ seed))
