"""Components for tests: descriptions whose configs take what they are given."""

from __future__ import annotations

from typing import Any

from pydantic import create_model

from outlast.components.describing import Component
from outlast.components.steps.config import Config


def described(name: str, outputs: tuple[str, ...] = (), **options: Any) -> Component:
    """A component whose config has these keys, all of them needed."""
    keys = options.pop("keys", ())
    model = create_model("Model", __base__=Config, **dict.fromkeys(keys, (Any, ...)))
    return Component(name, f"What {name} does.", model, dict.fromkeys(outputs, "an output"), **options)
