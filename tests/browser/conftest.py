"""Fixtures for the tests in a browser."""

from chromium import browser, visit  # noqa: F401 fixtures
