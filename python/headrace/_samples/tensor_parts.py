# SPDX-License-Identifier: Apache-2.0
"""Takes a tensor of any kind apart: into words that describe it, and arrays of bytes. Two tensors with the same parts
are equal to the last bit. The comparison of samples and the names of cached datasets use it."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple


class Parts(NamedTuple):
    """description: by name. values: the bytes of the elements, as arrays. more: what else belongs to the tensor, such
    as the attributes that a program or a subclass gives it."""

    description: dict[str, str]
    values: list[Any]
    more: Any


def parts_of(tensor: Any) -> Parts:
    """Returns the parts of a tensor. Raises the exceptions of torch for a tensor without values."""
    more: list[Any] = [dict(vars(tensor))] if getattr(tensor, "__dict__", None) else []
    if hasattr(type(tensor), "__tensor_flatten__"):  # a tensor that consists of others, such as a jagged one
        names, context = tensor.__tensor_flatten__()
        inner = {name: getattr(tensor, name) for name in names}
        return Parts({"kind": type(tensor).__name__, "dtype": str(tensor.dtype)}, [], [inner, context])
    torch = sys.modules["torch"]
    plain = tensor.detach() if type(tensor) is torch.Tensor else tensor.detach().as_subclass(torch.Tensor)
    description = {
        "kind": type(tensor).__name__,
        "dtype": str(tensor.dtype),
        "layout": str(tensor.layout),
        "requires_grad": str(tensor.requires_grad),
    }
    if plain.is_nested:
        return Parts(description, [], [list(plain.unbind()), *more])
    description["shape"] = str(tuple(tensor.shape))
    if plain.layout is torch.sparse_coo:
        description["coalesced"] = str(plain.is_coalesced())
    if plain.is_quantized:
        return Parts(description | _quantiser_of(plain), [*_scales_of(plain), _bytes_of(plain.int_repr())], more)
    return Parts(description, [_bytes_of(part) for part in _dense_parts_of(plain)], more)


def _dense_parts_of(tensor: Any) -> list[Any]:
    torch = sys.modules["torch"]
    if tensor.layout is torch.strided:
        return [tensor]
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce()
        return [tensor.indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor.to_dense()]


def _quantiser_of(tensor: Any) -> dict[str, str]:
    is_whole = "per_tensor" in str(tensor.qscheme())
    axis = "" if is_whole else f", axis {tensor.q_per_channel_axis()}"
    scale = f", scale {tensor.q_scale()!r}, zero {tensor.q_zero_point()}" if is_whole else ""
    return {"quantiser": f"{tensor.qscheme()}{scale}{axis}"}


def _scales_of(tensor: Any) -> list[Any]:
    if "per_tensor" in str(tensor.qscheme()):
        return []
    return [_bytes_of(tensor.q_per_channel_scales()), _bytes_of(tensor.q_per_channel_zero_points())]


def _bytes_of(tensor: Any) -> Any:
    """Returns the elements of a dense tensor as an array of bytes, without a copy if they lie one after the other."""
    torch = sys.modules["torch"]
    plain = tensor.resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy()
