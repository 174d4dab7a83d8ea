"""Well-typed programs at random: every node kind, operator family and dtype, symbolic and unknown sizes, with tame values.

`programs()` is the hypothesis strategy, `program(seed)` the same from a seed; `relay` programs come with arguments for ``@main``.
Recursion over data types that are drawn as well is `recursions.recursion`.
"""

from tests.generator.program import Program, program, programs

__all__ = ["Program", "program", "programs"]
