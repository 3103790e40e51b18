"""Completion scripts of bash, zsh and fish: the commands as data in, a script out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bpfprof.commands.described import (
    FILE,
    LAUNCHED,
    PROCESS,
    WORDS,
    DescribedCommand,
    DescribedOption,
    DescribedValue,
)

_Script = Callable[[Sequence[DescribedCommand], Sequence[DescribedOption]], str]

_BASH = """\
# Completion of bpfprof for bash, made by: bpfprof completion bash
_bpfprof() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command='' index
    local options='@OWN@' kinds=words words='@COMMANDS@'
    COMPREPLY=()
    # --pid=12 is three words here.
    if [[ $word == '=' ]]; then word=''; elif [[ $before == '=' ]]; then before=${COMP_WORDS[COMP_CWORD - 2]}; fi
    for ((index = 1; index < COMP_CWORD; index++)); do
        case ${COMP_WORDS[index]} in
        --)
            if declare -F _command_offset >/dev/null; then
                _command_offset $((index + 1))
            else
                mapfile -t COMPREPLY < <(compgen -c -- "$word")
            fi
            return
            ;;
        @NAMES@) [[ $command ]] || command=${COMP_WORDS[index]} ;;
        esac
    done
    case $command in
@CASES@
    esac
    case $command:$before in
@VALUES@
    *) if [[ $word == -* ]]; then kinds=words words=$options; fi ;;
    esac
    local kind
    for kind in $kinds; do
        case $kind in
        process) words=$(cd /proc && echo [0-9]*) ;;
        file)
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -f -- "$word")
            ;;
        esac
        if [[ $kind != file ]]; then mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -W "$words" -- "$word"); fi
    done
}
complete -F _bpfprof bpfprof
"""


def bash(commands: Sequence[DescribedCommand], own: Sequence[DescribedOption]) -> str:
    """A file for bash-completion, which also works where it is sourced alone."""
    cases, values = [], []
    for command in commands:
        kinds = [value for value in command.arguments if value.kind != LAUNCHED]
        words = " ".join(word for value in kinds for word in value.words)
        cases.append(
            f"    {command.name})\n        options='{_names(command.options())}'\n"
            f"        kinds='{' '.join(value.kind for value in kinds)}' words='{words}'\n        ;;"
        )
        for value, options in _by_value(command).items():
            patterns = "|".join(f"{command.name}:{name}" for option in options for name in option.names)
            values.append(f"    {patterns}) kinds='{_bash_kind(value)}' words='{' '.join(value.words)}' ;;")
    parts = {
        "@OWN@": _names(own),
        "@COMMANDS@": " ".join(command.name for command in commands),
        "@NAMES@": "|".join(command.name for command in commands),
        "@CASES@": "\n".join(cases),
        "@VALUES@": "\n".join(values),
    }
    return _filled(_BASH, parts)


def _bash_kind(value: DescribedValue) -> str:
    return value.kind if value.kind in (FILE, PROCESS, WORDS) else ""


def _by_value(command: DescribedCommand) -> dict[DescribedValue, list[DescribedOption]]:
    found: dict[DescribedValue, list[DescribedOption]] = {}
    for option in command.options():
        if option.value is not None:
            found.setdefault(option.value, []).append(option)
    return found


def _names(options: Sequence[DescribedOption]) -> str:
    return " ".join(name for option in options for name in option.names)


_ZSH = """\
#compdef bpfprof
# Completion of bpfprof for zsh, made by: bpfprof completion zsh
_bpfprof() {
    local context state state_descr line
    typeset -A opt_args
    _arguments -C -S @OWN@ '1:command:->command' '*::argument:->argument'
    case $state in
    command)
        local -a commands=(
@COMMANDS@
        )
        _describe -t commands 'bpfprof command' commands
        ;;
    argument)
        case $line[1] in
@CASES@
        esac
        ;;
    esac
}
if [[ $funcstack[1] == _bpfprof ]]; then _bpfprof "$@"; else compdef _bpfprof bpfprof; fi
"""
_ZSH_ACTIONS = {FILE: "_files", PROCESS: "_pids"}


def zsh(commands: Sequence[DescribedCommand], own: Sequence[DescribedOption]) -> str:
    """A file for a folder of $fpath, named _bpfprof; it may be sourced, too."""
    cases = []
    for command in commands:
        specs = [_zsh_option(option) for option in command.options()]
        specs += _zsh_arguments(command)
        lines = " \\\n                ".join(specs)
        cases.append(
            f"        {command.name})\n            _arguments -s -S \\\n                {lines}\n            ;;"
        )
    summaries = "\n".join(f"            {_quoted(f'{each.name}:{each.summary}')}" for each in commands)
    parts = {
        "@OWN@": " ".join(_zsh_option(option) for option in own),
        "@COMMANDS@": summaries,
        "@CASES@": "\n".join(cases),
    }
    return _filled(_ZSH, parts)


def _zsh_option(option: DescribedOption) -> str:
    text = option.text.replace("[", r"\[").replace("]", r"\]").replace(":", r"\:")
    value = "" if option.value is None else f":value:{_zsh_action(option.value)}"
    excluded = "*" if option.repeats else f"({' '.join(option.names)})"
    names = option.names[0] if len(option.names) == 1 else "{" + ",".join(option.names) + "}"
    return f"{_quoted(excluded)}{names}{_quoted(f'[{text}]{value}')}"


def _zsh_action(value: DescribedValue) -> str:
    return f"({' '.join(value.words)})" if value.words else _ZSH_ACTIONS.get(value.kind, " ")


def _zsh_arguments(command: DescribedCommand) -> list[str]:
    kinds = [value.kind for value in command.arguments]
    if LAUNCHED in kinds:
        own = _ZSH_ACTIONS[next(kind for kind in kinds if kind != LAUNCHED)]
        either = f'{{_alternative "own:what is there:{own}" "commands:command:_command_names -e"}}'
        return [_quoted(f"1: :{either}"), _quoted("*::argument:_normal")]
    return [_quoted(f"*:argument:{_zsh_action(value)}") for value in command.arguments]


_FISH = """\
# Completion of bpfprof for fish, made by: bpfprof completion fish
complete -c bpfprof -f
"""


def fish(commands: Sequence[DescribedCommand], own: Sequence[DescribedOption]) -> str:
    """A file for a folder of $fish_complete_path, named bpfprof.fish."""
    names = " ".join(command.name for command in commands)
    none = f"-n {_quoted(f'not __fish_seen_subcommand_from {names}')}"
    lines = [f"complete -c bpfprof {none} {_fish_option(option)}" for option in own]
    for command in commands:
        lines.append(f"complete -c bpfprof {none} -a {command.name} -d {_fish_quoted(command.summary)}")
    for command in commands:
        begin = f"complete -c bpfprof -n {_quoted(f'__fish_seen_subcommand_from {command.name}')}"
        lines += [f"{begin} {_fish_option(option)}" for option in command.options()]
        lines += [f"{begin} {_fish_value(value)}" for value in command.arguments if value.kind != LAUNCHED]
    return _FISH + "\n".join(lines) + "\n"


def _fish_option(option: DescribedOption) -> str:
    names = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names]
    value = [] if option.value is None else ["-r", _fish_value(option.value)]
    return " ".join([*names, *value, "-d", _fish_quoted(option.text)])


def _fish_value(value: DescribedValue) -> str:
    if value.kind == FILE:
        return "-F"
    found = "(__fish_complete_pids)" if value.kind == PROCESS else " ".join(value.words)
    return f"-f -a {_quoted(found)}" if found else "-f"


def _fish_quoted(text: str) -> str:
    """In single quotes, in which fish has two escapes."""
    return "'" + text.replace("\\", r"\\").replace("'", r"\'") + "'"


def _quoted(text: str) -> str:
    """In single quotes of a POSIX shell."""
    return "'" + text.replace("'", "'\\''") + "'"


def _filled(script: str, parts: dict[str, str]) -> str:
    for place, part in parts.items():
        script = script.replace(place, part)
    return script


SHELLS: dict[str, _Script] = {"bash": bash, "zsh": zsh, "fish": fish}
