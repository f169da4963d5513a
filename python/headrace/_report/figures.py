# SPDX-License-Identifier: Apache-2.0
"""The figures of the page, for one job: each function returns HTML, or "" if the recording has nothing for it."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence

from headrace import _core
from headrace._report import svg
from headrace._report.numbers import wait_by_length
from headrace._report.ranks import Job
from headrace._report.recorded import NS, Recorded, Rows, sum_histograms
from headrace._report.summary import replay_line
from headrace._report.words import brief, count, counted, duration, printable, rate, share, size

_MOST_STRIPS = 12  # workers, or ranks, that have a strip of their own
_MOST_LINES = 8  # workers that have a line of their own in the figure of memory
_MOST_SAMPLES = 20
_MINUTE_NS = 60 * 10**9
_STRIP_HEIGHT = 10
_RANK_HEIGHT = 40


def escaped(text: str) -> str:
    """Returns a text for HTML. Control characters, which a page may not have, become question marks; a line does not
    end before a %."""
    return html.escape(printable(text)).replace(" %", "\u00a0%")


def figure(title: str, about: str, content: str, name: str = "") -> str:
    return f'<figure class="{name}"><figcaption><b>{title}</b><small>{about}</small></figcaption>{content}</figure>'


def plot(drawing: str, ys: Sequence[str], xs: Sequence[str]) -> str:
    """Puts labels next to a drawing: from top to bottom, and from left to right."""
    labels = ("".join(f"<span>{escaped(label)}</span>" for label in side) for side in (ys, xs))
    left, below = labels
    return f'<div class="plot"><div class="ys">{left}</div>{drawing}<div class="xs">{below}</div></div>'


def key(name: str, text: str) -> str:
    return f'<span class="key {name}">&#9632;</span> {text}'


# ---- over time ----


def _ends(rows: Rows) -> tuple[int, int]:
    return rows["at_ns"][0] - rows["length_ns"][0], rows["at_ns"][-1]


def _times(first_ns: int, last_ns: int) -> list[str]:
    whole = (last_ns - first_ns) / NS
    return ["0", duration(whole / 2), duration(whole)]


def _over_time(
    rows: Rows, curves: Sequence[tuple[str, Sequence[float]]], top: float, label: str, ys: Callable[[float], str]
) -> str:
    first, last = _ends(rows)
    drawn = [svg.curve(svg.by_pixel(rows["at_ns"], values, first, last), top, name) for name, values in curves]
    drawing = svg.drawing(svg.grid() + "".join(drawn), label)
    return plot(drawing, [ys(top), ys(top / 2), "0"], _times(first, last))


def wait(one: Recorded) -> str:
    """Draws WAIT over time."""
    return figure(
        "WAIT over time",
        "the share of time that the loop spends inside next(); the band is from the smallest to the largest value",
        _over_time(one.rows, [("b", wait_by_length(one.rows))], 1.0, "WAIT over time", share),
        "wide",
    )


def rates(one: Recorded) -> str:
    """Draws how many batches the loop takes."""
    rows = one.rows
    per_s = [n * NS / ns if ns else 0.0 for n, ns in zip(rows["batches"], rows["length_ns"], strict=True)]
    top = svg.round_up(max(per_s))
    return figure("Batches per second", "", _over_time(rows, [("a", per_s)], top, "batches per second", rate))


def queue(one: Recorded) -> str:
    """Draws how many batches are ready."""
    if not one.workers:
        return ""
    top = float(max(one.queue_room, max(one.rows["queue_count"]), 1))
    content = _over_time(one.rows, [("c", one.rows["queue_count"])], top, "batches that are ready", count)
    return figure("Queue", "batches that are ready, of those that may be in flight", content)


def memory(one: Recorded) -> str:
    """Draws the private memory of the workers."""
    private = [worker["private_bytes"] for worker in one.rows.of_workers[:_MOST_LINES]]
    if not any(map(any, private)):
        return ""
    top = svg.round_up(max(map(max, private)) / 2**20) * 2**20
    more = "" if one.workers <= _MOST_LINES else f"; the first {_MOST_LINES} of {one.workers}"
    content = _over_time(one.rows, [("a", column) for column in private], top, "private memory of workers", size)
    return figure(
        "Private memory of each worker", f"after a fork, with what it still shares with its parent{more}", content
    )


# ---- phases ----


def _waits_by_minute(rows: Rows) -> dict[int, float]:
    waits: dict[int, float] = {}
    for at_ns, length_ns, waited in zip(rows["at_ns"], rows["length_ns"], wait_by_length(rows), strict=True):
        minute = (at_ns - 1) // _MINUTE_NS
        waits[minute] = waits.get(minute, 0.0) + waited * length_ns
    return waits


def _minutes(one: Recorded) -> list[tuple[str, int, int]]:
    """Returns the worst minute of those whose batches the recording still has, and the last one."""
    began = one.batches["began_ns"]
    if not began:
        return []
    first_ns, last_ns = min(began), max(began)
    waits = {minute: ns for minute, ns in _waits_by_minute(one.seconds).items()
             if first_ns <= minute * _MINUTE_NS and (minute + 1) * _MINUTE_NS <= last_ns}  # fmt: skip
    end_ns = max(begun + fetch + collate for begun, fetch, collate in
                 zip(began, one.batches["fetch_ns"], one.batches["collate_ns"], strict=True))  # fmt: skip
    found = [("the last minute", max(first_ns, end_ns - _MINUTE_NS), end_ns)]
    if waits:
        worst = max(waits, key=lambda minute: waits[minute])
        text = f"the minute with the most waiting ({share(waits[worst] / _MINUTE_NS)} of it)"
        found.append((text, worst * _MINUTE_NS, (worst + 1) * _MINUTE_NS))
    return found


_Times = list[tuple[float, float]]


def _busy_times(one: Recorded, first: int, last: int) -> dict[int, tuple[_Times, _Times]]:
    """Returns when each worker made samples, and when it collated."""
    names = ("worker", "began_ns", "fetch_ns", "collate_ns")
    found: dict[int, tuple[_Times, _Times]] = {worker: ([], []) for worker in range(one.workers)}
    for worker, began, fetch, collate in zip(*(one.batches[name] for name in names), strict=True):
        fetched = began + fetch
        if worker in found and began < last and fetched + collate > first:
            found[worker][0].append((began, fetched))
            found[worker][1].append((fetched, fetched + collate))
    return found


def _strip(worker: int, times: tuple[_Times, _Times], first: int, last: int) -> str:
    content = "".join(svg.spans(each, first, last, name, _STRIP_HEIGHT) for each, name in zip(times, "ab", strict=True))
    return svg.drawing(content, f"phases of worker {worker}", _STRIP_HEIGHT, svg.STRIP_WIDTH)


def phases(one: Recorded) -> str:
    """Draws what each worker does, in the last and in the worst minute."""
    found = []
    for text, first, last in _minutes(one) if one.workers else ():
        busy = _busy_times(one, first, last)
        strips = "".join(
            f"<span>worker {worker}</span>{_strip(worker, busy[worker], first, last)}"
            for worker in range(min(one.workers, _MOST_STRIPS))
        )
        start_s = max(0, first - _ends(one.rows)[0]) / NS
        xs = f"<span>{duration(start_s)}</span><span>{duration((last - first) / NS)} later</span>"
        about = f"{text}: {key('a', 'samples')} {key('b', 'collating and writing the batch')}"
        if one.workers > _MOST_STRIPS:
            about += f"; the first {_MOST_STRIPS} of {one.workers} workers"
        content = f'<div class="plot strip">{strips}<div class="xs">{xs}</div></div>'
        found.append(figure("What the workers do", about, content))
    return "".join(found)


# ---- histograms, slow samples ----


def _histogram(title: str, counts: Sequence[int], name: str) -> str:
    used = [bucket for bucket, number in enumerate(counts) if number]
    if not used:
        return ""
    first, last = max(0, used[0] - 1), min(len(counts) - 1, used[-1] + 1)
    shown = counts[first : last + 1]
    heights = [float(len(bin(number)) - 2) if number else 0.0 for number in shown]  # the logarithm to base 2
    p50, p99 = (brief(_core.quantile_ns(counts, part)) for part in (0.5, 0.99))
    about = f"{count(sum(counts))} times; p50 {p50}, p99 {p99}; heights are logarithms"
    labels = [brief(2.0**first), brief(2.0 ** ((first + last + 1) // 2)), brief(2.0 ** (last + 1))]
    drawing = svg.drawing(svg.grid() + svg.bars(heights, name), title)
    return figure(title, about, plot(drawing, [count(max(shown)), "", "0"], labels))


def histograms(one: Recorded) -> str:
    """Draws how long samples take, and how long a batch is in the collate function."""
    samples = sum_histograms(hour.samples for hour in one.hours)
    collates = sum_histograms(hour.collates for hour in one.hours)
    return _histogram("Time of a sample", samples, "a") + _histogram("Time of collating a batch", collates, "b")


def slowest(one: Recorded) -> str:
    """Lists the slowest samples, with a command that makes them again."""
    shown, unknown = one.slowest[:_MOST_SAMPLES], _core.NO_SAMPLE
    if not shown:
        return ""
    first_ns = _ends(one.rows)[0]
    rows = "".join(
        f"<tr><td>{'not known' if sample.index == unknown else count(sample.index)}</td><td>{brief(sample.ns)}</td>"
        f"<td>{sample.worker}</td><td>{escaped(duration(max(0.0, (sample.began_ns - first_ns) / NS)))}</td></tr>"
        for sample in shown
    )
    table = f"<table><tr><th>index</th><th>time</th><th>worker</th><th>at</th></tr>{rows}</table>"
    line = replay_line(one)
    if not line:
        return figure("The slowest samples", "", table)
    about = "`headrace replay` makes them again; put in the name of your dataset, or of a function that returns it"
    return figure("The slowest samples", about, f"{table}<pre>{escaped(line)}</pre>")


# ---- ranks ----


def _steps_of(one: Recorded) -> tuple[list[int], list[float]]:
    """Returns the steps of a rank, counted over epochs, and the ms inside next()."""
    rows = sorted(zip(*(one.steps[name] for name in ("epoch", "step", "inside_us")), strict=True))
    lengths: dict[int, int] = {}
    for epoch, step, _ in rows:
        lengths[epoch] = max(lengths.get(epoch, 0), step)
    before, total = {}, 0
    for epoch, length in sorted(lengths.items()):
        before[epoch] = total
        total += length
    shown = [(before[epoch] + step, us / 1e3) for epoch, step, us in rows if us != _core.NO_STEP]
    return [at for at, _ in shown], [ms for _, ms in shown]


def ranks(job: Job) -> str:
    """Draws the waits of the ranks side by side, by step."""
    if len(job.loaders) < 2:
        return ""
    curves = [_steps_of(one) for one in job.loaders[:_MOST_STRIPS]]
    if not all(at for at, _ in curves):
        return figure("Ranks", "", _table_of_ranks(job), "wide")
    first, last = min(at[0] for at, _ in curves), max(at[-1] for at, _ in curves)
    top = svg.round_up(max(max(ms) for _, ms in curves))
    strips = "".join(
        f"<span>rank {one.rank}</span>" + svg.drawing(
            svg.base(_RANK_HEIGHT)
            + svg.curve(svg.by_pixel(at, ms, first, last, svg.STRIP_WIDTH), top, "b", _RANK_HEIGHT),
            f"waits of rank {one.rank}", _RANK_HEIGHT, svg.STRIP_WIDTH,
        )
        for one, (at, ms) in zip(job.loaders, curves, strict=False)
    )  # fmt: skip
    xs = f"<span>step {count(first)}</span><span>{count(last)}</span>"
    about = (
        f"time inside next() of each step, to {brief(top * 1e6)}; {counted(job.steps, 'step')} are known of all ranks"
    )
    if len(job.loaders) > _MOST_STRIPS:
        about += f"; the first {_MOST_STRIPS} of {len(job.loaders)} ranks"
    content = f'<div class="plot rank">{strips}<div class="xs">{xs}</div></div>'
    return figure("Ranks by step", about, content + _table_of_ranks(job), "wide")


def _table_of_ranks(job: Job) -> str:
    rows = "".join(
        f"<tr><td>{one.rank}</td><td>{share(numbers.wait)}</td><td>{share(slow)}</td><td>{share(numbers.busy)}</td>"
        f"<td>{rate(numbers.steps / numbers.seconds) if numbers.seconds else ''}</td><td>{escaped(one.host)}</td></tr>"
        for one, numbers, slow in zip(job.loaders, job.of_ranks, job.slowest, strict=True)
    )
    heads = ("rank", "WAIT", "slowest by 10 % of a step", "workers busy", "batches/s", "host")
    return f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>{rows}</table>"


def all_of(job: Job) -> Iterable[str]:
    """Returns the figures of a job. But for those of ranks, they are those of the rank that waits longest."""
    one = job.loaders[job.worst]
    if not len(one.rows):
        return []
    drawn: list[Callable[[Recorded], str]] = [wait, phases, rates, queue, histograms, slowest, memory]
    return [drawn[0](one), ranks(job), *(draw(one) for draw in drawn[1:])]
