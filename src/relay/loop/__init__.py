"""Loop nests: the IR, its verifier, simplifier, evaluator and the description of a target machine."""
