"""Loop nests to machine code: LLVM IR, elementary functions, object files, the disk cache and worker processes."""
