"""``metaq-broker init``: a commented configuration to begin with."""

from __future__ import annotations

import argparse
import sys
from importlib.resources import files
from pathlib import Path
from typing import Final

from metaq_broker.dev import checked_folder

NAME: Final = "server.ini"


def add_init_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``init`` to the subcommands of ``metaq-broker``."""
    init = commands.add_parser("init", help="write a commented server.ini to begin with")
    init.add_argument("folder", nargs="?", default=Path(), type=Path, metavar="FOLDER", help="default: this folder")
    init.set_defaults(command=_init)


def template(data: Path) -> str:
    """Return the text of the file, for messages in ``data``.

    Raises:
        ConfigError: The folder's name cannot be written into a configuration.
    """
    text = files("metaq_broker").joinpath(NAME).read_text(encoding="utf-8")
    return text.replace("@DATA@", str(checked_folder(data)))


def _init(options: argparse.Namespace) -> int:
    folder: Path = options.folder.expanduser().absolute()
    path = folder / NAME
    text = template(folder / "data")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        print(f"metaq-broker: {path} exists already; nothing is changed", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"metaq-broker: {path} cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    print(f"{path} is written. Look through it, then start the broker:\n\nmetaq-broker start -f {path}")
    return 0
