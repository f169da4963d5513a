# SPDX-License-Identifier: Apache-2.0
"""JAX: a linear model on batches that JAX reads where headrace's workers have written them.

    pip install . jax   # in the checkout
    python examples/train_jax.py

headrace.Loader needs no torch. Workers come from a fork server, because JAX starts threads.
"""

from __future__ import annotations

import headrace
import numpy as np

SAMPLES, BATCH, EPOCHS = 2_000, 50, 5


class Points:
    """Points in a plane, and on which side of a line they are."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.float32]:
        point = np.random.default_rng(index).random(2, np.float32)
        return point, np.float32(point.sum() > 1)


def main() -> None:
    import jax  # not in the workers
    import jax.numpy as jnp

    def loss_of(weights: jax.Array, points: jax.Array, labels: jax.Array) -> jax.Array:
        logits = points @ weights[:2] + weights[2]
        return jnp.mean(jnp.logaddexp(0, logits) - labels * logits)

    step = jax.jit(jax.value_and_grad(loss_of))
    loader = headrace.Loader(
        Points(),
        BATCH,
        shuffle=True,
        seed=0,
        num_workers=2,
        multiprocessing_context="headrace",
        persistent_workers=True,
    )
    weights, losses = jnp.zeros(3), []
    for _ in range(EPOCHS):
        total = 0.0
        for points, labels in loader:
            loss, gradient = step(weights, jax.dlpack.from_dlpack(points), jax.dlpack.from_dlpack(labels))
            weights = weights - 2.0 * gradient
            total += float(loss)
        losses.append(total / len(loader))
    print("losses:", *(f"{loss:.3f}" for loss in losses))


if __name__ == "__main__":
    main()
