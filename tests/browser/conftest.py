from chromium import browser, visit  # noqa: F401 fixtures
