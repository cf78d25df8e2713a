"""Methods of C that read a setting of the process: the local time zone, the locale, NumPy's print options."""

from __future__ import annotations

import datetime
from typing import NoReturn

import numpy

from smelt.capture.base.handlers import METHODS, Handler, unsupported
from smelt.capture.machine.vm import VM
from smelt.reasons import SIDE_EFFECT_IO, UNSUPPORTED_EFFECT


def _reading_the_zone(name: str) -> Handler:
    """The method `name` of a datetime, which reads the local time zone where it is told of no other."""

    def handle(vm: VM, owner: datetime.datetime, *args: object, **kwargs: object) -> object:
        told = owner.tzinfo is not None and (name != "astimezone" or {*args, *kwargs.values()} - {None})
        if not told:
            raise unsupported(f"{name} of a {type(owner).__qualname__}", SIDE_EFFECT_IO)
        return vm.native(getattr(datetime.datetime, name), (owner, *args), kwargs)

    return handle


def _in_the_locale(vm: VM, owner: datetime.date | datetime.time, *args: object, **kwargs: object) -> NoReturn:
    raise unsupported(f"strftime of a {type(owner).__qualname__}", SIDE_EFFECT_IO)


def _text(vm: VM, array: object, *args: object, **kwargs: object) -> NoReturn:
    raise unsupported("the text of a NumPy array, which print options decide", UNSUPPORTED_EFFECT)


for _name in ("__str__", "__repr__", "__format__"):
    METHODS[numpy.ndarray, _name] = _text
for _name in ("timestamp", "astimezone"):
    METHODS[datetime.datetime, _name] = _reading_the_zone(_name)
for _kind in (datetime.date, datetime.datetime, datetime.time):
    METHODS[_kind, "strftime"] = _in_the_locale
