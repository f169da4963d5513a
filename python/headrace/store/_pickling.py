# SPDX-License-Identifier: Apache-2.0
"""The functions that pickles of frozen data name which were made when headrace.frozen was headrace.store."""

from __future__ import annotations

from headrace.frozen._pickling import _load_embedded as _load_embedded
from headrace.frozen._pickling import _load_file as _load_file
from headrace.frozen._pickling import _load_part as _load_part
from headrace.frozen._pickling import _view as _view
