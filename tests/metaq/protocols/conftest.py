"""Property tests run the same examples every time and are not judged by a clock that other work may stop."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
