"""`siirl completion bash|zsh|fish`: prints a shell completion script.

    siirl completion bash > ~/.local/share/bash-completion/completions/siirl
    # in a folder of fpath
    siirl completion zsh > ~/.zfunc/_siirl
    siirl completion fish > ~/.config/fish/completions/siirl.fish

It completes subcommands, flags, `group=option`, `key=` and values with choices. The script contains
all words, so the shell answers without starting Python; regenerate it after an upgrade of siirl.
Left out: keys of custom groups, names that user modules register, and elements of lists (a shell
would interpret their brackets).
"""

import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence

from siirl import __version__, interrupts
from siirl.commands import FLAGS, SUBCOMMANDS, Subcommand
from siirl.errors import ConfigError, UnknownNameError
from siirl.interrupts import leave
from siirl.params.command_help import described
from siirl.params.config_groups import OPTIONAL_GROUPS, options
from siirl.params.schema import Key, keys_of
from siirl.params.training_args import SiiRLArguments
from siirl.terminal.exit_status import exit_status

BASH = r"""# siirl @VERSION@: completion for bash, made by `siirl completion bash`.
_siirl() {
    local IFS=$' \t\n' typed=${COMP_LINE:0:COMP_POINT} settings='@SETTINGS@'
    local known='' cut='' last='' word rest stem
    typed=${typed##*[[:space:]]}
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        known='@SUBCOMMANDS@'
    else
        case ${COMP_WORDS[1]} in
@CASES@
        esac
    fi
    # Bash replaces only the part after `=`, one of its word breaks.
    [[ $typed == *=* && $COMP_WORDBREAKS == *=* ]] && cut=${typed%"${typed##*=}"}
    for word in $known; do
        [[ $word == "$typed"* ]] || continue
        rest=${word#"$typed"} stem=${word#"$typed"}
        stem=${stem%%[.=]*}
        [[ $typed == *=* ]] || word=$typed$stem${rest:${#stem}:1} # one part of a key at a time
        [[ $word == "$last" ]] && continue
        last=$word
        [[ $word == *[.=] ]] && compopt -o nospace 2> /dev/null
        COMPREPLY+=("${word#"$cut"}")
    done
}
complete -o bashdefault -o default -F _siirl siirl
"""

ZSH = r"""#compdef siirl
# siirl @VERSION@: completion for zsh, made by `siirl completion zsh`.
_siirl() {
    local settings='@SETTINGS@' word rest stem
    local -a known parts whole
    if (( CURRENT == 2 )); then
        known=(
@DESCRIBED@
        )
        _describe subcommand known
        compadd -- @FLAGS@
        return
    fi
    case ${words[2]} in
@CASES@
    esac
    for word in ${=known}; do
        [[ $word == "$PREFIX"* ]] || continue
        rest=${word#"$PREFIX"} stem=${${word#"$PREFIX"}%%[.=]*}
        [[ $PREFIX == *=* ]] || word=$PREFIX$stem${rest:${#stem}:1} # one part of a key at a time
        if [[ $word == *[.=] ]]; then parts+=("$word"); else whole+=("$word"); fi
    done
    if (( $#parts + $#whole )); then
        (( $#parts )) && compadd -S '' -- ${(u)parts}
        (( $#whole )) && compadd -- ${(u)whole}
        return 0
    fi
    compset -P '*='
    _files
}
if [[ ${funcstack[1]} == _siirl ]]; then _siirl "$@"; else compdef _siirl siirl; fi
"""

FISH = r"""# siirl @VERSION@: completion for fish, made by `siirl completion fish`.
set -l siirl_settings '@SETTINGS@'
complete -c siirl -n __fish_use_subcommand -f @LONG@
@DESCRIBED@
@CASES@
"""


def script(shell: str) -> str:
    """Completion script of a shell.

    Raises:
        UnknownNameError: The shell is not supported.
    """
    writers: dict[str, Callable[[], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    if shell not in writers:
        raise UnknownNameError.of(kind="shell", name=shell, known=writers)
    return writers[shell]()


def settings() -> list[str]:
    """Every `group=option`, `key=choice`, and `key=` of a key without choices, sorted."""
    groups = options()
    chosen = {f"{group}={option}" for group, names in groups.items() for option in names}
    chosen |= {f"{group}=null" for group in OPTIONAL_GROUPS & groups.keys()}
    keys = [key for key in keys_of(SiiRLArguments) if not key.metadata.get("derived")]
    for key in keys:
        chosen |= {f"{key.place}={value}" for value in choices_of(key) or ("",)}
    return sorted(chosen)


def choices_of(key: Key) -> tuple[str, ...]:
    """Choices of a key; none for numbers, texts, lists and mappings."""
    origin, arguments = typing.get_origin(key.hint), typing.get_args(key.hint)
    if origin in (tuple, list, dict):
        return ()
    kinds = arguments if origin in (typing.Union, types.UnionType) else (key.hint,)
    if bool in kinds:
        return ("false", "true")
    written: list[str] = []
    for kind in kinds:
        if typing.get_origin(kind) is typing.Literal:
            written += map(str, typing.get_args(kind))
    return tuple(key.metadata.get("choices") or written)


def _bash() -> str:
    cases = (f'            {name}) known="{_words(name)}" ;;' for name in SUBCOMMANDS)
    return _fill(BASH, {"CASES": "\n".join(cases), "SUBCOMMANDS": " ".join([*SUBCOMMANDS, *FLAGS])})


def _zsh() -> str:
    cases = (f'        {name}) known="{_words(name)}" ;;' for name in SUBCOMMANDS)
    described = (f"            '{name}:{subcommand.summary}'" for name, subcommand in _quoted())
    return _fill(
        ZSH,
        {"CASES": "\n".join(cases), "DESCRIBED": "\n".join(described), "FLAGS": " ".join(FLAGS)},
    )


def _fish() -> str:
    described = (
        f"complete -c siirl -n __fish_use_subcommand -f -a {name} -d '{sub.summary}'"
        for name, sub in _quoted()
    )
    return _fill(
        FISH,
        {
            "CASES": "\n".join(_fish_cases()),
            "DESCRIBED": "\n".join(described),
            "LONG": _long(FLAGS),
        },
    )


def _fish_cases() -> Iterator[str]:
    for name, subcommand in SUBCOMMANDS.items():
        line = f"complete -c siirl -n '__fish_seen_subcommand_from {name}'"
        yield f"{line} {_long([word for word in subcommand.words if word.startswith('--')])}"
        words = [word for word in subcommand.words if not word.startswith("--")] + [
            "$siirl_settings"
        ] * subcommand.configures
        if words:  # a separate line: after `-l`, fish reads `-a` as the flag's values
            yield f'{line} -a "{" ".join(words)}"'


def _long(flags: Sequence[str]) -> str:
    return " ".join(f"-l {flag.removeprefix('--')}" for flag in flags)


def _words(name: str) -> str:
    subcommand = SUBCOMMANDS[name]
    return " ".join([*sorted(subcommand.words), *(["$settings"] if subcommand.configures else [])])


def _quoted() -> Iterator[tuple[str, Subcommand]]:
    for name, subcommand in SUBCOMMANDS.items():
        yield name, subcommand._replace(summary=subcommand.summary.replace("'", "'\\''"))


def _fill(template: str, parts: Mapping[str, str]) -> str:
    for name, text in {**parts, "SETTINGS": " ".join(settings()), "VERSION": __version__}.items():
        template = template.replace(f"@{name}@", text)
    return template


def main(argv: Sequence[str] | None = None) -> int:
    """Print the script of the named shell; return the exit status: 0 done, 2 refused."""
    words = list(sys.argv[1:] if argv is None else argv)
    return exit_status(lambda: _print(words), what="the completion")


def _print(words: Sequence[str]) -> None:
    if {"--help", "-h"} & set(words):
        print(described(__doc__, "siirl.completion"), flush=True)
    elif len(words) != 1:
        fault = "More than one word" if words else "No shell"
        raise ConfigError(f"{fault} given. Type: siirl completion bash, zsh or fish.")
    else:
        print(script(words[0]), end="", flush=True)


def command() -> None:
    """Entry of the process; signals may end it."""
    interrupts.listen()
    leave(main())


if __name__ == "__main__":
    command()
