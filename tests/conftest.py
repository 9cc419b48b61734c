"""Loads every theme of fixtures: the files fix_*.py beside this one."""

from pathlib import Path

pytest_plugins = sorted(path.stem for path in Path(__file__).parent.glob("fix_*.py"))
