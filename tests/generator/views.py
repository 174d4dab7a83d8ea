"""Programs of slices, borders, parts put together and other views of tensors of unknown sizes, as text, with arithmetic between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
# A size is a number or text over the variables n and m.
Size = int | str
Shape = tuple[Size, ...]


def _sum(a: Size, b: Size) -> Size:
    return a + b if isinstance(a, int) and isinstance(b, int) else f"({a}) + ({b})"


def _product(a: Size, b: Size) -> Size:
    return a * b if isinstance(a, int) and isinstance(b, int) else f"({a}) * ({b})"


def _attribute(size: Size) -> str:
    return f"Dim[{size}]"


def at(shape: Shape, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """A shape where the variables have values."""
    return tuple(int(eval(str(d), {}, {**sizes, "min": min, "max": max})) for d in shape)


@dataclass(slots=True)
class Views:
    """A function of three tensors over sizes n and m."""

    number: int
    pick: Random = field(init=False)
    shapes: list[Shape] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    values: list[tuple[str, Shape]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pick = Random(self.number)
        k = self.pick.choice([1, 2, 3, 4, 15, 16])
        others: list[Shape] = [("n", k), ("m", "n"), ("n",), (k, "n"), ("n", "m", k)]
        self.shapes = [("n", "m"), *(self.pick.choice(others) for _ in range(2))]
        self.values = [(f"%p{n}", s) for n, s in enumerate(self.shapes)]
        for _ in range(self.pick.randint(3, 9)):
            self._step()

    def text(self, sizes: Mapping[str, int] | None) -> str:
        """``@main`` for any sizes, or for these, which calls the function of any."""
        main = "f" if sizes else "main"
        lines = "\n".join(f"  {line}" for line in self.lines)
        # Every value is read, and each of its elements told from the others.
        read = " + ".join(f"sum(sin({v} * 1.25f64)) + sum({v} * {v})" for v, _ in self.values)
        head = f'#[version = "0.0.5"]\ndef @{main}[n: Dim, m: Dim]({self._params(None)}) {{\n'
        whole = f"{head}{lines}\n  ({read}, {self.values[-1][0]})\n}}\n"
        if sizes:
            whole += (
                f"def @main({self._params(sizes)}) {{ @f({', '.join(f'%p{n}' for n in range(len(self.shapes)))}) }}\n"
            )
        return whole

    def arguments(self, sizes: Mapping[str, int]) -> list[Array]:
        generator = np.random.default_rng(self.number)
        return [generator.standard_normal(at(s, sizes)) for s in self.shapes]

    def _params(self, sizes: Mapping[str, int] | None) -> str:
        shapes = [s if sizes is None else at(s, sizes) for s in self.shapes]
        return ", ".join(f"%p{n}: Tensor[({', '.join(map(str, s))},), float64]" for n, s in enumerate(shapes))

    def _bind(self, value: str, shape: Shape) -> None:
        self.lines.append(f"let %v{len(self.lines)} = {value};")
        self.values.append((f"%v{len(self.lines) - 1}", shape))

    def _step(self) -> None:
        pick = self.pick
        x, shape = pick.choice(self.values[-3:])
        axis = pick.randrange(len(shape))
        size = shape[axis]

        def along(new: Size) -> Shape:
            return (*shape[:axis], new, *shape[axis + 1 :])

        match pick.randrange(10):
            case 0 | 1 | 2:
                self._slice(x, shape, axis)
            case 3:
                y, other = pick.choice(
                    [
                        v
                        for v in self.values
                        if len(v[1]) == len(shape) and along(0) == (*v[1][:axis], 0, *v[1][axis + 1 :])
                    ]
                )
                self._bind(f"concatenate(({x}, {y}), axis={axis})", along(_sum(size, other[axis])))
            case 4:
                borders: list[tuple[Size, Size]] = [(0, 1), (2, 1), ("n", 0), (0, "m"), (1, 0)]
                before, after = pick.choice(borders)
                mode = pick.choice(["constant", "constant", "edge", "wrap", "reflect", "symmetric"])
                widths = ["[0, 0]"] * len(shape)
                widths[axis] = f"[{_attribute(before)}, {_attribute(after)}]"
                self._bind(
                    f'nn.pad({x}, pad_width=[{", ".join(widths)}], pad_mode="{mode}")',
                    along(_sum(size, _sum(before, after))),
                )
            case 5 if len(shape) > 1:
                order = list(range(len(shape)))
                pick.shuffle(order)
                self._bind(f"transpose({x}, axes={order})", tuple(shape[a] for a in order))
            case 6 if len(shape) > 1:
                a = pick.randrange(len(shape) - 1)
                new = (*shape[:a], _product(shape[a], shape[a + 1]), *shape[a + 2 :])
                self._bind(f"reshape({x}, newshape=[{', '.join(map(_attribute, new))}])", new)
            case 7:
                self._bind(f"repeat({x}, repeats=2, axis={axis})", along(_product(size, 2)))
            case 8 if len(shape) == 2:
                y, other = pick.choice([v for v in self.values if len(v[1]) == 2 and v[1][1] == shape[1]])
                self._bind(f"tanh(nn.dense({x}, {y}))", (shape[0], other[0]))
            case _:
                self._bind(f"reverse(tanh({x}), axis={axis})", shape)

    def _slice(self, x: str, shape: Shape, axis: int) -> None:
        """A part of one axis, and another one as it is, in its order or the other."""
        d = shape[axis]
        parts: list[tuple[Size, Size, Size]] = [
            (0, f"({d}) // 2", f"({d}) // 2"),
            (f"({d}) // 2", d, f"({d}) - ({d}) // 2"),
            (0, f"min(1, {d})", f"min(1, {d})"),
            (f"max({d} - 2, 0)", d, f"{d} - max({d} - 2, 0)"),
            (f"({d}) - 1", d, 1),
            (0, f"min({d}, 3)", f"min({d}, 3)"),
        ]
        begin, end, new = self.pick.choice(parts)
        begins, ends, strides, axes = [_attribute(begin)], [_attribute(end)], [1], [axis]
        if len(shape) > 1 and self.pick.random() < 0.4:
            begins, ends, strides, axes = (
                [*begins, "-1"],
                [*ends, "-9223372036854775808"],
                [1, -1],
                [axis, (axis + 1) % len(shape)],
            )
        attributes = f"begin=[{', '.join(begins)}], end=[{', '.join(ends)}], strides={strides}, axes={axes}"
        self._bind(f"strided_slice({x}, {attributes})", (*shape[:axis], new, *shape[axis + 1 :]))
