"""The C header of a library."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relay.executable.format import ExecutableImage
from relay.executable.sizes import size_text


def header_text(image: ExecutableImage, name: str, path: Path) -> str:
    """Declares the program and numbers its entries, with their types as comments."""
    guard = f"RELAY_PROGRAM_{name.upper()}_H"
    entries = "\n".join(
        f"  /* {_signature(entry.name, json.loads(entry.info))} */\n  {name}_entry_{_identifier(entry.name)} = {number},"
        for number, entry in enumerate(image.entries)
    )
    return f"""/* The Relay program in {path.name}, compiled for {image.triple}.
 *
 *     relay_executable* program = {name}_open();
 *     relay_value* result = NULL;
 *     relay_status status = relay_run(program, {name}_entry_{_identifier(image.entries[0].name)}, arguments, count, NULL, &result);
 *
 * relay/c_api.h says how values are made and read, what can fail, and how to limit a run. */
#ifndef {guard}
#define {guard}

#include <relay/c_api.h>

#ifdef __cplusplus
extern "C" {{
#endif

extern const relay_program {name}_program;

/* The program, ready to run; NULL on failure (relay_last_error says why). Close it with relay_executable_free. */
static inline relay_executable* {name}_open(void) {{ return relay_open(&{name}_program); }}

/* What relay_run takes as its entry. */
enum {name}_entry {{
{entries}
}};

#ifdef __cplusplus
}}
#endif

#endif
"""


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name, flags=re.ASCII)


def _signature(name: str, info: Mapping[str, Any]) -> str:
    params = ", ".join(f"{p['name']}: {_type(p['type'])}" for p in info["params"])
    return f"{name}({params}) -> {_type(info['result'])}"


def _type(spec: Mapping[str, Any]) -> str:
    match spec["kind"]:
        case "tensor":
            return f"{spec['dtype']}[{', '.join(map(size_text, spec['shape']))}]"
        case "tuple":
            return f"({', '.join(_type(f) for f in spec['fields'])})"
        case "adt":
            arguments = ", ".join(_type(a) for a in spec["args"])
            return f"{spec['name']}[{arguments}]" if arguments else str(spec["name"])
        case "var":
            return str(spec["name"])
        case "size":
            return size_text(spec["size"])
        case "shape":
            return f"({', '.join(map(size_text, spec['shape']))})"
        case "base type":
            return str(spec["dtype"])
        case kind:
            return str(kind)
