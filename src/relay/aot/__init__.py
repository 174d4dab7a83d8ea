"""Native code of whole programs: bytecode to LLVM, and libraries that run without Python."""
