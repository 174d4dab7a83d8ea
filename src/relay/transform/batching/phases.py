"""Requests whose work goes in phases: recursion over what other recursion has computed, up a tree and down again, an encoder and a decoder.

Levels of all requests need the results of recursive calls to be there when others begin. So an entry is cut where one recursion needs what
another gives: what is done with a request before the cut is done for all requests, then what comes behind it for all:

def @main.requests(%requests, %w) {
  let %first = @main.requests.1(%requests, %w);                      # levels of all requests
  let %next = rows.requests(%requests, (%first.0, %first.1), ...);   # a list again: what the next phase reads of each request
  let %second = @main.requests.2(%next, %w);
  (%second.0, ...)
}

What is the same in all requests (of shared arguments alone) is computed in each phase that reads it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import cast

from relay.ir.dim import ANY, DimVar, as_dim
from relay.ir.expr import Attrs, Binding, Block, Call, Expr, Function, GlobalVar, Match, Proj, Tuple, Var
from relay.ir.record import record
from relay.ir.types import AdtType, FuncType, TupleType, TypeDef
from relay.ir.walk import free_vars
from relay.op.assemble import ITEM, REQUEST, ROW
from relay.transform.batching.clauses import NotStructural, made_of_tensors
from relay.transform.batching.levels import fresh
from relay.transform.batching.lifted import Emitter
from relay.transform.batching.requests import Requests, listed, rows_of
from relay.transform.blocks import body_of, nested_blocks
from relay.transform.build import type_of
from relay.transform.copying import with_own_dims


@record(frozen=True, slots=True, eq=False)
class Phase:
    """What one phase does with a request: its function, whose first parameters are what it ``reads`` of the request, or of what earlier
    phases give; and what it ``gives`` to later ones, tensors and values of data types."""

    function: Function
    reads: tuple[Var, ...]
    gives: tuple[Var, ...]


@record(slots=True, eq=False)
class Phases:
    """The phases of what is done with one request, in ``function``, of whose parameters ``each`` differ from request to request;
    ``result`` are the parts of its result."""

    function: Function
    each: tuple[int, ...]
    result: list[Var] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    # Of each variable that is not the same in all requests: its phase, the first being 1, and 0 for what the request brings.
    _number: dict[Var, int] = field(default_factory=dict)
    _made: dict[Var, Expr] = field(default_factory=dict)
    _code: list[list[Binding]] = field(default_factory=list)
    _gives: list[dict[Var, None]] = field(default_factory=list)
    _parts: dict[Var, tuple[Var, ...]] = field(default_factory=dict)

    def cut(self) -> bool:
        """Cut it; whether there are several phases. Raises NotStructural."""
        body = body_of(self.function)
        self._number.update((self.function.params[n], 0) for n in self.each)
        for binding in body.bindings:
            self._made[binding.var] = binding.value
            before = [self._number[v] for v in free_vars(binding.value) if v in self._number]
            if before:
                after = max(before) + self._looks(binding.value)
                self._number[binding.var] = max(after, 1)
        count = max(self._number.values(), default=0)
        if count < 2:
            return False
        self._code = [[] for _ in range(count)]
        self._gives = [{} for _ in range(count)]
        for binding in body.bindings:
            for number in [self._number[binding.var] - 1] if binding.var in self._number else range(count):
                self._code[number].append(binding)
        self._result(body.result)
        for number in reversed(range(count)):  # what phases read is given by those before
            if self._gives[number]:
                self.phases.insert(0, self._phase(number))
        return True

    def _looks(self, value: Expr) -> bool:
        """Whether an operation goes through a structure, or looks at what a phase has made."""
        if isinstance(value, Call) and isinstance(value.fn, GlobalVar):
            return True
        if isinstance(value, Match) and isinstance(value.data, Var) and self._number.get(value.data, 0):
            return True
        return any(self._looks(b.value) for block in nested_blocks(value) for b in block.bindings)

    def _result(self, result: Expr) -> None:
        todo = [result]
        while todo:
            atom = todo.pop()
            made = self._made.get(atom) if isinstance(atom, Var) else None
            if isinstance(made, Tuple):
                todo += reversed(made.fields)
                continue
            if not isinstance(atom, Var) or not self._number.get(atom, 0):
                # What the request brings, and what is the same in all: the first phase gives it.
                value = atom
                atom = Var("result", None, type_of(value))
                self._code[0].append(Binding(atom, value))
                self._number[atom] = 1
            number = self._number[atom] - 1
            for part in self._parts_of(atom):
                self._gives[number][part] = None
                self.result.append(part)

    def _parts_of(self, var: Var) -> tuple[Var, ...]:
        """The tensors and values of data types of a value, projected in its phase. Raises NotStructural."""
        known = self._parts.get(var)
        if known is not None:
            return known
        if not made_of_tensors(type_of(var), data_types=True):
            raise NotStructural(
                f"%{var.name}, which recursion of a request hands to other recursion, is not made of tensors and data types"
            )
        out: list[Var] = []
        code = self._code[self._number[var] - 1]
        todo = [var]
        while todo:
            here = todo.pop()
            ty = type_of(here)
            if isinstance(ty, TupleType):
                fields = [Var(var.name, None, t) for t in ty.fields]
                code += [Binding(f, Proj(here, n, t)) for n, (f, t) in enumerate(zip(fields, ty.fields, strict=True))]
                todo += reversed(fields)
            else:
                out.append(here)
        self._parts[var] = tuple(out)
        return self._parts[var]

    def _phase(self, number: int) -> Phase:
        """A phase, when those behind it are made."""
        code = _without_unused_tuples(self._code[number], self._gives[number])
        bound = {b.var for b in code}
        needed = dict.fromkeys(v for b in code for v in free_vars(b.value) if v in self._number and v not in bound)
        # The first phase takes requests as they come.
        reads = [] if number else [self.function.params[n] for n in self.each]
        head = Emitter()
        for var in needed:
            if self._number[var] == 0:
                reads.append(var)
                continue
            parts = self._parts_of(var)
            self._gives[self._number[var] - 1].update(dict.fromkeys(parts))
            reads += parts
            if parts != (var,):
                head.bindings += _together(var, iter(parts))
        gives = tuple(self._gives[number])
        ty = TupleType(tuple(type_of(v) for v in gives))
        result = Var("gives", None, ty)
        block = Block((*head.bindings, *code, Binding(result, Tuple(gives, ty))), result, ty)
        unique = tuple(dict.fromkeys(reads))
        shared = [p for n, p in enumerate(self.function.params) if n not in self.each]
        params = (*unique, *shared)
        whole = FuncType(tuple(type_of(p) for p in params), ty, self.function.type_params)
        return Phase(replace(self.function, params=params, body=block, ret_type=ty, ty=whole), unique, gives)

    def driver(self, name: str, asked: Sequence[Requests], kind: TypeDef, attrs: Attrs) -> Function:
        """The function of this name that does all phases of a list of requests, each by its function."""
        function = self.function
        brought = [function.params[n] for n in self.each]
        shared = [p for n, p in enumerate(function.params) if n not in self.each]
        dims = tuple(as_dim(cast(DimVar, d)) for d in function.type_params)
        listing = AdtType(kind.name, (TupleType(tuple(type_of(p) for p in brought)),))
        many = Var("requests", listing, listing)
        out = Emitter()
        given: dict[Var, Var] = {}  # by what a phase gives: rows of tensors, lists of values
        for number, (phase, of) in enumerate(zip(self.phases, asked, strict=True)):
            data = many if not number else self._listed(many, phase, brought, given, kind, out)
            result = TupleType(tuple(type_of(v) for v in phase.gives))
            ty = rows_of(result, kind, fresh("requests"))
            call = Call(GlobalVar(of.name, of.function.ty), (data, *shared), type_args=dims, ty=ty)
            done = out.bind("done", call, ty)
            order = sorted(phase.gives, key=lambda v: isinstance(type_of(v), AdtType))
            given |= {
                v: out.bind(v.name, Proj(done, n, t), t) for n, (v, t) in enumerate(zip(order, ty.fields, strict=True))
            }
        parts = [given[v] for v in sorted(self.result, key=lambda v: isinstance(type_of(v), AdtType))]
        ty = TupleType(tuple(type_of(p) for p in parts))
        answer = out.bind("answer", Tuple(tuple(parts), ty), ty)
        result_type = body_of(function).ty or function.ret_type
        assert result_type is not None
        params = (many, *shared)
        ret = rows_of(result_type, kind, ANY)
        block = Block(tuple(out.bindings), answer, ty)
        whole = FuncType(tuple(type_of(p) for p in params), ret, function.type_params)
        return with_own_dims(replace(function, params=params, body=block, ret_type=ret, attrs=attrs, ty=whole))

    @staticmethod
    def _listed(
        many: Var, phase: Phase, brought: Sequence[Var], given: Mapping[Var, Var], kind: TypeDef, out: Emitter
    ) -> Var:
        """What a phase reads of each request, as a list of tuples."""
        parts: dict[Var, int] = {}
        words: list[int] = []
        for var in phase.reads:
            if var in given:
                words += (ITEM if isinstance(type_of(var), AdtType) else ROW, parts.setdefault(var, len(parts)))
            else:
                words += (REQUEST, brought.index(var))
        operands = tuple(given[v] for v in parts)
        of = TupleType(tuple(type_of(p) for p in operands))
        whole = out.bind("parts", Tuple(operands, of), of)
        ty = AdtType(kind.name, (TupleType(tuple(type_of(v) for v in phase.reads)),))
        attrs = {"spec": tuple(words), "names": listed(kind.name), "type": ty}
        return out.op("rows.requests", (many, whole), ty, "requests", **attrs)


def _without_unused_tuples(code: Sequence[Binding], used: Collection[Var]) -> list[Binding]:
    """The code without tuples that nothing reads: the parts of what a request gives come from several phases."""
    out: list[Binding] = []
    needed = set(used)
    for binding in reversed(code):
        if binding.var in needed or not isinstance(binding.value, Tuple | Proj):
            out.append(binding)
            needed.update(free_vars(binding.value))
    return out[::-1]


def _together(var: Var, parts: Iterator[Var]) -> list[Binding]:
    """What binds a variable of tuple type to its parts."""
    out: list[Binding] = []
    todo = [var]
    while todo:
        here = todo.pop()
        ty = type_of(here)
        assert isinstance(ty, TupleType)
        fields = [Var(var.name, None, t) if isinstance(t, TupleType) else next(parts) for t in ty.fields]
        out.append(Binding(here, Tuple(tuple(fields), ty)))
        todo += [f for f, t in zip(fields, ty.fields, strict=True) if isinstance(t, TupleType)]
    return out[::-1]
