"""Target descriptions: what plans and code generation know about the machine code is made for (never "this
machine")."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

# A larger last cache is that of many cores, and others, whom a virtual machine does not see, take their parts of it: where 480 MB were
# reported, copying 12 MB took 1.6 ms through the caches and 2.1 past them, 25 MB 3.4 and 2.3, softmax of as much 4.7 and 1.9.
_L3_SHARE = 64 << 20


# A record is pickled otherwise, and files of kernels have one of these.
@dataclass(frozen=True, slots=True)
class Target:
    """A CPU to generate code for. Part of every kernel's cache key.

    ``triple``, ``cpu`` and ``features`` are LLVM's names; ``vector_bits`` is the register width to vectorise for and
    ``vector_registers`` how many there are; ``masked`` says whether there are masked loads and stores (`masks`: of what elements).
    Cache sizes are in bytes.
    """

    triple: str
    cpu: str = "generic"
    features: tuple[str, ...] = ()
    vector_bits: int = 128
    vector_registers: int = 16
    masked: bool = False
    fma: bool = True
    l1_bytes: int = 32 << 10
    l2_bytes: int = 512 << 10
    l3_bytes: int = 8 << 20

    def lanes(self, bits: int) -> int:
        """Elements of this many bits in a vector register (at least 1)."""
        return max(1, self.vector_bits // max(bits, 8))

    @property
    def mask_registers(self) -> bool:
        """Whether masks are bits in registers of their own, and an instruction spreads or gathers lanes as one says (AVX-512);
        otherwise they take a vector register each (AVX2)."""
        return self.masked and self.vector_bits >= 512

    @property
    def gathers_slowly(self) -> bool:
        """Whether lanes are read faster one by one than by a gather, which these processors break into more operations than that."""
        return self.cpu.startswith("znver")

    @property
    def looked_up_from(self) -> float:
        """How much places have to rise from lane to lane, at the least, for vectors to be looked up in whole vectors, and not gathered at
        places that a table has (infinity: none are). Where gathers are fast it takes longer than one to find out where lanes are that
        several share."""
        if not self.mask_registers:
            return inf
        return 0.0 if self.gathers_slowly else 1.0

    def masks(self, bits: int) -> bool:
        """Whether vectors of elements of this many bits in memory are loaded and stored under a mask: AVX2 has no masks for less than
        32 bits."""
        return self.masked and (bits >= 32 or self.mask_registers)

    @property
    def outruns_caches(self) -> bool:
        """Whether two multiply-adds of vectors of 512 bits are done in a cycle, as all processors do that do not take such vectors in
        halves: tiles then take what they read twice as fast, and the caches behind the first are what they wait for."""
        return self.vector_bits >= 512 and self.cpu != "znver4"

    @property
    def widens_dearly(self) -> bool:
        """Whether widening narrow elements again for every tile takes time beside its multiply-adds: processors that multiply two vectors
        of 512 bits in a cycle widen them with the same units, and of shorter vectors a step is a few multiply-adds, for which each
        element of the left operand takes two or three instructions where a float32 number takes none."""
        return self.outruns_caches or self.vector_bits < 512

    @property
    def has_matrix_registers(self) -> bool:
        """Whether there are registers of 16 rows of 64 bytes, and an instruction that adds a product of two of bfloat16 numbers to one of
        float32 numbers (AMX)."""
        return {"amx-tile", "amx-bf16"} <= set(self.features)

    @property
    def multiplies_pairs(self) -> bool:
        """Whether vectors of pairs of bfloat16 numbers are multiplied and added (dpbf16ps) as fast as vectors of float32 numbers: Intel's
        processors do it at half that rate."""
        return "avx512bf16" in self.features and self.cpu.startswith("znver")

    @property
    def multiplies_words(self) -> bool:
        """Whether products of four bytes, or two integers of 16 bits, in every lane of a whole vector are added up by one instruction
        (vpdpbusd, vpdpwssd)."""
        features = set(self.features)
        return self.vector_bits >= 256 and ({"avx512vnni", "avx512vl"} <= features or "avxvnni" in features)

    @property
    def multiplies_halves(self) -> bool:
        """Whether those of two integers of 16 bits are, by two instructions (pmaddwd and an addition)."""
        needed = "avx512bw" if self.vector_bits >= 512 else "avx2"
        return self.multiplies_words or (self.vector_bits >= 256 and needed in self.features)

    @property
    def streamed_bytes(self) -> int | None:
        """Results from this size on are not worth a place in the caches: with as much that was read beside them they fill
        three quarters of the last one, so that they are gone before they are read again, and each line of them would be
        fetched from memory only to be overwritten. None: there are no stores for that."""
        return min(self.l3_bytes, _L3_SHARE) * 3 // 8 if self.triple.startswith("x86_64") else None

    def with_features(self, *features: str) -> Target:
        return replace(self, features=(*self.features, *features))
