from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

HEAVY = {"torch", "vllm", "transformers", "pyarrow", "numpy", "PIL", "av", "datasets", "librosa", "soundfile", "httpx"}


def processor_time() -> float:
    """Seconds that the processes started from here and ended have used."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.mark.parametrize(
    "command",
    [[], ["caption"], ["transcribe"], ["annotate"], ["plan"], ["run"], ["recipes", "list"], ["doctor"], ["demo"]],
)
def test_help_leads_with_examples_and_comes_at_once(gemma4, command: list[str]) -> None:
    fastest = 9.0
    for _ in range(3):  # the best of three, in processor time: other work on the machine is not the command's
        began = processor_time()
        done = gemma4(*command, "--help")
        fastest = min(fastest, processor_time() - began)
    assert done.returncode == 0
    assert done.stdout.index("Examples") < done.stdout.index("Options")
    assert f"gemma4 {' '.join(command)}" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert fastest < 0.5


def test_the_commands_import_nothing_heavy() -> None:
    code = f"import sys, gemma4cli.cli; print(sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("named", "used"), [({}, "system"), ({"ARROW_DEFAULT_MEMORY_POOL": "mimalloc"}, "mimalloc")])
def test_arrow_gives_back_what_it_freed_unless_it_is_told_otherwise(named: dict[str, str], used: str) -> None:
    code = (
        "import sys, contextlib\nfrom gemma4cli.cli import main\nsys.argv = ['gemma4', '--version']\n"
        "with contextlib.suppress(SystemExit):\n    main()\n"
        "import pyarrow\nprint(pyarrow.default_memory_pool().backend_name)"
    )
    env = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"} | named
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.split()[-1] == used


def test_no_arguments_print_the_help(gemma4) -> None:
    assert "caption" in gemma4().stdout


def test_the_version_is_that_of_the_package(gemma4) -> None:
    from gemma4cli import __version__

    assert gemma4("--version").stdout == f"gemma4 {__version__}\n"


def test_shell_completion_completes_commands(gemma4) -> None:
    env = {"_GEMMA4_COMPLETE": "complete_bash", "COMP_WORDS": "gemma4 tr", "COMP_CWORD": "1"}
    assert gemma4(env=env).stdout.split() == ["transcribe"]
