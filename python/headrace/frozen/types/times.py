# SPDX-License-Identifier: Apache-2.0
"""Dates, times and time zones."""

from __future__ import annotations

import datetime
import importlib
from typing import Any

from headrace.frozen.types.row import Row


def _datetime_parts(value: datetime.datetime) -> Any:
    date = (value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond)
    return (*date, value.tzinfo, value.fold)


def _make_datetime(parts: Any) -> Any:
    return datetime.datetime(*parts[:8], fold=parts[8])


def _time_parts(value: datetime.time) -> Any:
    return (value.hour, value.minute, value.second, value.microsecond, value.tzinfo, value.fold)


def _make_time(parts: Any) -> Any:
    return datetime.time(*parts[:5], fold=parts[5])


def _timedelta_parts(value: datetime.timedelta) -> Any:
    return (value.days, value.seconds, value.microseconds)


def _timezone_parts(value: Any) -> Any:
    return value.__getinitargs__()


def _make_zone(key: Any) -> Any:
    return importlib.import_module("zoneinfo").ZoneInfo(key)


ROWS = [
    Row(datetime.datetime, "datetime", _datetime_parts, _make_datetime),
    Row(datetime.date, "date", lambda value: (value.year, value.month, value.day), lambda parts: datetime.date(*parts)),
    Row(datetime.time, "time", _time_parts, _make_time),
    Row(datetime.timedelta, "timedelta", _timedelta_parts, lambda parts: datetime.timedelta(*parts)),
    Row(datetime.timezone, "timezone", _timezone_parts, lambda parts: datetime.timezone(*parts)),
]

try:
    import zoneinfo
except ImportError:  # this Python was built without it
    pass
else:
    ROWS.append(Row(zoneinfo.ZoneInfo, "ZoneInfo", lambda zone: zone.key, _make_zone))
