"""Loop nests to machine code: LLVM IR, elementary functions, object files, the disk cache and worker processes."""

from relay.codegen.kernels import build
from relay.codegen.llvm import emit
from relay.codegen.target import host_target, parse_target

__all__ = ["build", "emit", "host_target", "parse_target"]
