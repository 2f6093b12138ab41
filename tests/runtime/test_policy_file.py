from __future__ import annotations

from pathlib import Path

import pytest
from moe_operator.api.policy import OperatorPolicy
from moe_operator.runtime.policy_file import PolicyUnreadable, load_policy


def test_no_file_is_the_defaults() -> None:
    assert load_policy(None) == OperatorPolicy()


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("# nothing yet\n")
    assert load_policy(tmp_path / "p.yaml") == OperatorPolicy()


def test_what_the_file_says_is_read(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("allowedImagePrefixes: [registry.example/]\nhostAccessAllowed: true\n")
    policy = load_policy(tmp_path / "p.yaml")
    assert (policy.allowed_image_prefixes, policy.host_access_allowed) == (["registry.example/"], True)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"cacheClases: {}\n", "cacheClases: Extra inputs are not permitted"),
        (b"cacheClasses: {nvme: {root: relative}}\n", "cacheClasses.nvme.root: "),
        (b"- a\n- b\n", "(whole file): "),
        (b"a: [\n", "not YAML"),
        (b"\xff\xfe\x00", "not YAML"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_its_keys(
    tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "p.yaml"
    path.write_bytes(content)
    with pytest.raises(PolicyUnreadable) as caught:
        load_policy(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert words in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PolicyUnreadable, match=r"p\.yaml: No such file or directory"):
        load_policy(tmp_path / "p.yaml")
