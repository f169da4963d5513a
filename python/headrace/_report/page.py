# SPDX-License-Identifier: Apache-2.0
"""Writes the page of `headrace report`: one file that needs no network and runs no script."""

from __future__ import annotations

import time
from collections.abc import Sequence

from headrace._report import figures, notes, rules
from headrace._report.figures import escaped
from headrace._report.numbers import seconds_of
from headrace._report.ranks import Job
from headrace._report.recorded import NS
from headrace._report.style import STYLE
from headrace._report.summary import UPPER_BOUND, facts_on, name_of, replay_line
from headrace._report.words import duration

MOST_BYTES = 1 << 20
_FOR_TEXTS = 64 << 10  # bytes of a page that are left for loaders whose figures have no room


def _verdict(job: Job) -> str:
    verdict = rules.verdict_on(job)
    one = job.loaders[job.worst]
    parts = [f"<strong>{escaped(verdict.title)}</strong><p>{escaped(verdict.text)}</p>"]
    if verdict.advice:
        parts.append(f"<p>{escaped(verdict.advice)}</p>")
    if verdict.kind == "slow samples" and (line := replay_line(one)):
        parts.append(f"<pre>{escaped(line)}</pre>")
    return f'<div class="verdict">{"".join(parts)}</div>'


def _about(job: Job) -> str:
    """Says when and where the job ran."""
    one = job.loaders[job.worst]
    if not len(one.rows):
        return f"{one.path}: nothing was recorded"
    began = time.gmtime(one.real_ns(one.rows["at_ns"][0]) / NS)
    parts = [
        f"{one.host}, pid {one.pid}" + (f", rank {one.rank}" if len(job.loaders) > 1 else ""),
        f"recorded for {duration(seconds_of(one.rows))} from {time.strftime('%Y-%m-%d %H:%M:%S', began)} UTC",
        one.ended or "the recording has no end: the recorder still runs, or was killed",
        f"headrace {one.version}",
    ]
    return "; ".join(parts)


def _texts(job: Job) -> str:
    one = job.loaders[job.worst]
    facts = "".join(f"<dt>{escaped(label)}</dt><dd>{escaped(text)}</dd>" for label, text in facts_on(job))
    noted = "".join(f'<div class="note">{escaped(note)}</div>' for note in notes.notes_on(job))
    return (
        f'<h2>{escaped(name_of(job))}</h2><p class="soft">{escaped(_about(job))}<br/>'
        f"<code>{escaped(one.command)}</code></p>"
        f"{_verdict(job)}{noted}<dl>{facts}</dl>"
    )


def make(jobs: Sequence[Job], folder: str) -> str:
    """Returns the page. If the figures of all loaders are too large for it, those that wait least have none."""
    parts: list[str] = []
    left = MOST_BYTES - len(STYLE.encode()) - _FOR_TEXTS
    for at, job in enumerate(jobs):
        texts, drawn = _texts(job), f'<div class="figures">{"".join(figures.all_of(job))}</div>'
        if len((texts + drawn).encode()) > left:
            drawn = '<p class="soft">For its figures, make a page of its file alone.</p>'
        left -= len((texts + drawn).encode())
        if left < -_FOR_TEXTS / 2:
            parts.append(f"<p>There are {len(jobs) - at} more loaders: name their files instead of the folder.</p>")
            break
        parts.append(texts + drawn)
    title = f"headrace report: {escaped(folder)}"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>'
        f'{title}</title><meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f'<style>{STYLE}</style></head><body><h1>{title}</h1><p class="soft">{escaped(UPPER_BOUND)}</p>'
        f"{''.join(parts)}</body></html>\n"
    )
