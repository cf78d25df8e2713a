"""Chromium, driven by Playwright, and a page in it that must ask for nothing and complain of nothing."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

REQUIRED = bool(os.environ.get("CI") or os.environ.get("SMELT_CHROMIUM"))


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser: what SMELT_CHROMIUM names, else the PATH's, else Playwright's own. Where there is none the test is
    skipped, but not where one was asked for (`REQUIRED`)."""
    if not REQUIRED:
        pytest.importorskip("playwright", reason="Playwright is not installed: requirements/test.txt")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = os.environ.get("SMELT_CHROMIUM") or shutil.which("chromium")
        if not found and not REQUIRED and not Path(playwright.chromium.executable_path).exists():
            pytest.skip(
                "no Chromium: set SMELT_CHROMIUM, or install Debian's chromium or `playwright install chromium`"
            )
        # Chromium has no sandbox for root, as whom containers run; the pages are files of the tests.
        browser = playwright.chromium.launch(executable_path=found or None, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, path: Path, view: str = "", scheme: str = "light") -> Iterator[Any]:
    """The file in a page of its own. At the end it must have asked for nothing else, and the console must be empty."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 800})
    page = context.new_page()
    asked: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.goto(f"{path.as_uri()}#{view}")
    page.wait_for_selector("main")
    yield page
    context.close()
    assert complaints == []
    assert {url.split("#")[0] for url in asked} == {path.as_uri()}


# A page draws some time after it was asked to: what it shows is waited for, and never read once.
# (`wait_for_function` evaluates strings, which the page's policy forbids.)


def visit(page: Any, view: str) -> None:
    """Goes to a view, and returns when it is drawn: the page's own listener, which draws, comes before this one, and what it
    draws further after a frame."""
    page.evaluate(
        """(address) => new Promise((drawn) => {
          const frame = (then) => requestAnimationFrame(() => setTimeout(then));
          if (location.hash === address) return drawn();
          addEventListener("hashchange", () => frame(() => frame(drawn)), { once: true });
          location.hash = address;
        })""",
        f"#{view}",
    )


def says(page: Any, selector: str, text: str | re.Pattern[str] | list[str]) -> None:
    """Waits until the element has this text, one in which the pattern is found, or the elements these texts. Any white
    space is a space."""
    from playwright.sync_api import expect

    expect(page.locator(selector)).to_have_text(text, use_inner_text=True)


def contains(page: Any, selector: str, text: str) -> None:
    """Waits until the text is a part of the element's."""
    from playwright.sync_api import expect

    expect(page.locator(selector)).to_contain_text(text, use_inner_text=True)


def counts(page: Any, selector: str, count: int) -> None:
    """Waits until this many elements are there."""
    from playwright.sync_api import expect

    expect(page.locator(selector)).to_have_count(count)


def has(page: Any, selector: str, attribute: str, value: str | re.Pattern[str]) -> None:
    """Waits until the element has this value of an attribute."""
    from playwright.sync_api import expect

    expect(page.locator(selector)).to_have_attribute(attribute, value)


def focuses(page: Any, name: str | re.Pattern[str]) -> None:
    """Waits until what has the focus is called this."""
    from playwright.sync_api import expect

    expect(page.locator(":focus")).to_have_accessible_name(name)
