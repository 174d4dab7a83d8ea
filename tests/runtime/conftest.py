"""Ways of running programs assembled by hand."""

from __future__ import annotations

from typing import Any

import pytest

from relay.aot.native import with_native_code
from relay.codegen.target import host_target
from relay.executable import ExecutableImage
from tests.runtime import programs


@pytest.fixture(params=["vm", "aot"])
def executor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways: by the virtual machine and as native code."""
    if request.param == "aot":
        assembled = programs.image

        def with_code(*args: Any, **rest: Any) -> ExecutableImage:
            return with_native_code(assembled(*args, **rest), host_target())

        monkeypatch.setattr(programs, "image", with_code)
    return str(request.param)
