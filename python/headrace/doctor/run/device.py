# SPDX-License-Identifier: Apache-2.0
"""Says why batches that are sent to a GPU are copied slowly, or not ahead of the loop."""

from __future__ import annotations

from typing import Any

from headrace.doctor.observations import Observation


def check_device(report: dict[str, Any]) -> list[Observation]:
    """Returns observations of what a loader with the option device has reported."""
    sent = report.get("device")
    if not sent:
        return []
    found = []
    if sent["refusal"]:
        text = (
            "The driver refused to register shared memory, so batches are copied from ordinary memory: about three "
            "times slower, and the trainer waits. Usual causes: a limit on locked memory, or a sandbox."
        )
        fix = "ulimit -l unlimited; in a container: --ulimit memlock=-1"
        found.append(Observation("device", "warning", f"refused: {sent['refusal']}", sent["device"], text, fix))
    if sent["is_full"]:
        text = "A fourth of the loader's limit of memory is registered; other batches are copied from ordinary memory."
        found.append(Observation("device", "note", "the limit is reached", sent["device"], text, "arena_limit=..."))
    if sent["not_ahead"]:
        text = "The GPU had no memory for a batch ahead of the loop, so copies and computing take turns."
        found.append(Observation("device", "warning", sent["not_ahead"], sent["device"], text, "device_prefetch=0"))
    return found or [Observation("device", "ok", f"{sent['registered_slots']} registered slots", sent["device"])]
