"""The texts of the completion scripts of bash, zsh and fish."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

_BASH: Final = """\
# Completion of metaq for bash. Use it with: source <(metaq completion bash)
_metaq_topics() {{
    local globals=() i
    for ((i = 1; i < last; i++)); do
        case ${{line[i]}} in
            -c|--cluster|--profile) globals+=("${{line[i]}}" "${{line[i + 1]}}") ;;
        esac
    done
    metaq "${{globals[@]}}" completion --topics 2>/dev/null
}}

_metaq() {{
    local line=() last=-1 at= expects= known= count=0 i word cur
    for ((i = 0; i <= COMP_CWORD; i++)); do  # bash splits words at colons and equals signs
        word=${{COMP_WORDS[i]}}
        if [[ $i -gt 0 && ( $word == [:=]* || ${{line[last]}} == *[:=] ) ]]; then
            line[last]=${{line[last]}}$word
        else
            last=$((last + 1))
            line[last]=$word
        fi
    done
    cur=${{line[last]}}
    COMPREPLY=()
    for ((i = 1; i < last; i++)); do
        word=${{line[i]}}
        if [[ -n $expects ]]; then
            expects=
            continue
        fi
        case "$at $word" in
{takes}
            *" -"*) ;;
{enters}
            *) count=$((count + 1)) ;;
        esac
    done
    if [[ -z $expects ]]; then
        if [[ $cur == -* ]]; then
            case $at in
{options}
            esac
            COMPREPLY=($(compgen -W "$known" -- "$cur"))
            return
        fi
        case "$at:$count" in
{arguments}
        esac
    fi
    case $expects in
        topic) COMPREPLY=($(compgen -W "$(_metaq_topics)" -- "$cur")) ;;
        file) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- "$cur")) ;;
        "="*) COMPREPLY=($(compgen -W "${{expects:1}}" -- "$cur")) ;;
    esac
}}

complete -F _metaq metaq
"""


@dataclass(frozen=True, slots=True)
class CompletedOption:
    """An option: its names, its help text, and the kind of its value.

    ``values`` are the allowed values, if they are limited. ``kind``: ``flag``, ``value``, ``file`` or ``topic``.
    """

    names: tuple[str, ...]
    help: str
    kind: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Words:
    """What may follow ``path``, the commands typed so far.

    ``arguments`` are the kinds of its arguments, in order: ``topic``, ``file``, ``value`` or a list of the values
    allowed; the last one may be repeated if ``repeats``.
    """

    path: tuple[str, ...]
    commands: dict[str, str]
    options: tuple[CompletedOption, ...]
    arguments: tuple[str | tuple[str, ...], ...]
    repeats: bool


def bash(words: Sequence[Words]) -> str:
    """Return the script for bash."""
    takes, enters, options, arguments = list[str](), list[str](), list[str](), list[str]()
    for one in words:
        path = "/".join(one.path)
        for option in one.options:
            if option.kind != "flag":
                names = "|".join(f'"{path} {name}"' for name in option.names)
                takes.append(f"            {names}) expects={shlex.quote(_expected(option.values or option.kind))} ;;")
        enters += [
            f'            "{path} {name}") at="{"/".join((*one.path, name))}"; count=0 ;;' for name in one.commands
        ]
        names = " ".join(name for option in one.options for name in option.names)
        options.append(f'                "{path}") known="{names}" ;;')
        arguments += _bash_arguments(path, one)
    return _BASH.format(
        takes="\n".join(takes), enters="\n".join(enters), options="\n".join(options), arguments="\n".join(arguments)
    )


def _bash_arguments(path: str, words: Words) -> Iterable[str]:
    if words.commands:
        yield f'            "{path}:0") expects={shlex.quote(_expected(tuple(words.commands)))} ;;'
    for number, kind in enumerate(words.arguments):
        yield f'            "{path}:{number}") expects={shlex.quote(_expected(kind))} ;;'
    if words.repeats:
        yield f'            "{path}:"*) expects={shlex.quote(_expected(words.arguments[-1]))} ;;'


def _expected(kind: str | tuple[str, ...]) -> str:
    """Return the script's word for the next argument: ``=`` and the values, or its kind."""
    return kind if isinstance(kind, str) else "=" + " ".join(kind)


_ZSH: Final = """\
#compdef metaq
# Completion of metaq for zsh. Use it with: source <(metaq completion zsh)
(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit -i; }}
autoload -U +X bashcompinit && bashcompinit
{bash}"""


def zsh(words: Sequence[Words]) -> str:
    """Return the script for zsh, which runs bash's."""
    return _ZSH.format(bash=bash(words).partition("\n")[2])


_FISH: Final = """\
# Completion of metaq for fish. Use it with: metaq completion fish | source
function __metaq_topics
    set -l words (commandline -opc)
    set -l globals
    for i in (seq (count $words))
        if contains -- $words[$i] -c --cluster --profile
            set -a globals $words[$i] $words[(math $i + 1)]
        end
    end
    metaq $globals completion --topics 2>/dev/null
end
complete -c metaq -f
"""


def fish(words: Sequence[Words]) -> str:
    """Return the script for fish."""
    lines = list[str]()
    for one in words:
        condition = _fish_condition(one)
        lines += [
            f"complete -c metaq -n {condition} -a {shlex.quote(name)} -d {_quoted(text)}"
            for name, text in one.commands.items()
        ]
        lines += [_fish_option(condition, option) for option in one.options]
        for kind in dict.fromkeys(one.arguments):
            if (values := _fish_values(kind)) is not None:
                lines.append(f"complete -c metaq -n {condition} {values}")
    return _FISH + "\n".join(lines) + "\n"


def _fish_condition(words: Words) -> str:
    seen = [f"__fish_seen_subcommand_from {name}" for name in words.path]
    if words.commands:
        seen.append(f"not __fish_seen_subcommand_from {' '.join(words.commands)}")
    return shlex.quote("; and ".join(seen) or "true")


def _fish_option(condition: str, option: CompletedOption) -> str:
    parts = [f"complete -c metaq -n {condition}"]
    parts += [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names]
    if option.kind != "flag":
        parts.append("-r" if option.kind == "file" else "-x")
        if (values := _fish_values(option.values or option.kind)) is not None:
            parts.append(values)
    return " ".join([*parts, "-d", _quoted(option.help)])


def _fish_values(kind: str | tuple[str, ...]) -> str | None:
    if isinstance(kind, tuple):
        return f"-a {shlex.quote(' '.join(kind))}"
    return {"file": "-F", "topic": "-a '(__metaq_topics)'"}.get(kind)


def _quoted(text: str) -> str:
    r"""Return a text as fish quotes it: between single quotes, where only \ and ' are special."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
