"""Stored forms of guards: JSON values, for processes that look for entries of earlier ones (`smelt/warm`)."""

from __future__ import annotations

from typing import Any, Protocol


class Unstorable(Exception):
    """An object, or an entry, has no stored form; the text is the reason."""


class FormWriter(Protocol):
    """Writes stored forms. Each method raises Unstorable."""

    def value(self, value: Any) -> Any:
        """The form of a constant, of an object that guards compare by identity, or of a tuple of these."""

    def identical(self, value: Any) -> Any:
        """The form of an object whose identity a guard compares."""

    def function(self, parts: Any, function: Any) -> Any:
        """The form of code, defaults and keyword defaults of `function`, the object of a root; None for another source."""

    def class_facts(self, native: Any) -> Any:
        """The form of what a guard knows of a class."""

    def tensor(self, native: Any) -> Any:
        """The form of what a guard compares of a tensor."""
