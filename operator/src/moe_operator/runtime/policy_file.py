"""Reads the admin's configuration file and says in one line per key what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import yaml
from pydantic import ValidationError

from moe_operator.api.policy import OperatorPolicy


class PolicyUnreadable(Exception):
    """The file cannot be used; the message names the file and every bad key."""


def load_policy(path: Path | None) -> OperatorPolicy:
    """The policy in ``path``; the defaults when no file is named."""
    if path is None:
        return OperatorPolicy()
    try:
        return OperatorPolicy.from_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PolicyUnreadable(f"{path}: {error.strerror or error}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise PolicyUnreadable(f"{path}: not YAML: {error}") from error
    except ValidationError as error:
        lines = [
            f"  {'.'.join(str(part) for part in item['loc']) or '(whole file)'}: {item['msg']}"
            for item in error.errors(include_url=False, include_input=False)
        ]
        raise PolicyUnreadable("\n".join([f"{path}: not a valid operator configuration", *lines])) from error
