from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from moe_operator.cli import operator

HEAVY = ("kopf", "kubernetes", "aiohttp", "httpx", "pydantic", "yaml", "asyncio", "rich", "prometheus_client")


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither in a pod nor at home."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(operator, "SERVICE_ACCOUNT_TOKEN", tmp_path / "no-token")
    monkeypatch.setattr(operator, "USER_KUBECONFIG", tmp_path / "no-kubeconfig")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\n"
        "from moe_operator.cli.operator import main\n"
        f"main({arguments!r}, standalone_mode=False)\n"
        f"print('imported:', sorted(set({HEAVY!r}) & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "imported: []"


def test_the_sandbox_is_offered_beside_run() -> None:
    answer = CliRunner().invoke(operator.main, ["--help"])
    assert answer.exit_code == 0
    assert "run " in answer.output
    assert "sandbox " in answer.output
    assert operator.main.list_commands(click.Context(operator.main)) == ["run", "sandbox"]


def test_an_unknown_command_is_refused() -> None:
    answer = CliRunner().invoke(operator.main, ["serve"])
    assert (answer.exit_code, "No such command 'serve'" in answer.output) == (2, True)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0.0.0.0:8080", ("0.0.0.0", 8080)),
        ("[::]:8080", ("::", 8080)),
        ("localhost:0", ("localhost", 0)),
        ("8080", None),
        (":8080", None),
        ("host:", None),
        ("host:70000", None),
        ("host:-1", None),
        ("host:٣", None),
    ],
)
def test_listen_is_a_host_and_a_port(text: str, address: tuple[str, int] | None) -> None:
    if address is None:
        with pytest.raises(click.BadParameter, match="is not HOST:PORT"):
            operator.Address().convert(text, None, None)
    else:
        assert operator.Address().convert(text, None, None) == address


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no API server: give --kubeconfig"),
        (["--kubeconfig", "/nowhere/config"], "kubeconfig /nowhere/config does not exist"),
        (["--listen", "8080"], "'8080' is not HOST:PORT"),
        (["--workers", "0"], "0 is not in the range"),
        (["--config", "/nowhere/policy.yaml"], "/nowhere/policy.yaml: No such file or directory"),
        (["--log-level", "loud"], "'loud' is not one of"),
    ],
)
def test_bad_arguments_end_with_code_2_and_say_what_is_wrong(arguments: list[str], words: str) -> None:
    answer = CliRunner().invoke(operator.main, ["run", *arguments])
    assert answer.exit_code == 2
    assert words in answer.output


@pytest.mark.usefixtures("outside")
def test_where_the_api_server_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given, home, token = (tmp_path / name for name in ("given", "home", "token"))
    for path in (given, home, token):
        path.write_text("")
    monkeypatch.setattr(operator, "USER_KUBECONFIG", home)
    assert operator._credentials(str(given)) == str(given)
    assert operator._credentials(None) == str(home)
    monkeypatch.setattr(operator, "SERVICE_ACCOUNT_TOKEN", token)
    assert operator._credentials(None) is None
