# SPDX-License-Identifier: Apache-2.0
"""Takes the first index of a sampler in a new process. bench_sampling.py runs it and reads what it printed.

`sampling_script.py LIBRARY COUNT WORLD_SIZE` uses the DistributedSampler of a library, and prints as JSON {"first": s,
"peak": bytes, "kept": bytes}: the time from iter() to the first index, the growth of the process at most until then,
and the growth that stays while the indices are used.
"""

import gc
import importlib
import json
import sys
import time

import measure

MODULES = {"torch": "torch.utils.data", "headrace": "headrace.torch"}


def main() -> None:
    library, count, world_size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    kind = importlib.import_module(MODULES[library]).DistributedSampler
    next(iter(kind(range(1000), world_size, 0)))
    sampler = kind(range(count), world_size, 0)
    gc.collect()
    measure.reset_peak()
    before, start = measure.status_bytes("VmRSS"), time.perf_counter()
    indices = iter(sampler)
    next(indices)
    first = time.perf_counter() - start
    print(
        json.dumps(
            {
                "first": first,
                "peak": measure.status_bytes("VmHWM") - before,
                "kept": measure.status_bytes("VmRSS") - before,
            }
        )
    )


if __name__ == "__main__":
    main()
