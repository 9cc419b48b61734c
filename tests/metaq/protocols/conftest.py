"""Property tests run the same examples every time and are not judged by a clock that other work may stop."""

from examples import examples
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, max_examples=examples(100))
settings.load_profile("repeatable")
