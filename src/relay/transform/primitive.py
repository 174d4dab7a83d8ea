"""Making a primitive: a function over tensors around some operator calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from relay.ir.expr import Binding, Block, Call, Constant, Expr, Function, Proj, Tuple, Var
from relay.ir.types import FuncType, TensorType, TupleType, Type
from relay.transform.cse import operation_key

PRIMITIVE = MappingProxyType({"Primitive": 1})


_NOTHING: Mapping[Var, Call] = MappingProxyType({})


def as_primitive_call(
    members: Sequence[Binding],
    outputs: Sequence[Var],
    tuples: Mapping[Var, Tuple],
    fills: Mapping[Var, Call] = _NOTHING,
) -> tuple[list[Binding], Call]:
    """The members (calls and projections, in order) as one primitive applied to what they read.

    ``outputs``: the members' variables that are results (several: a tuple). ``tuples``: what tuple variables consist
    of; of any other tuple the fields are projected before the call: these bindings come first in the result.
    ``fills``: variables that are calls without operands, which the primitive makes for itself.
    """
    maker = _Maker({b.var for b in members}, set(outputs), tuples, fills)
    for member in members:
        maker.add(member)
    results = tuple(maker.inner[v] for v in outputs)
    if len(results) == 1:
        result: Expr = results[0]
        ty = outputs[0].ty
    else:
        ty = TupleType(tuple(_typed(v.ty) for v in outputs))
        result = Var("outputs", None, ty)
        maker.body.append(Binding(result, Tuple(results, ty)))
    fn_type = FuncType(tuple(_typed(p.ty) for p in maker.params), _typed(ty))
    primitive = Function(
        tuple(maker.params),
        Block(tuple(maker.body), result, ty),
        ty,
        attrs=PRIMITIVE,
        ty=fn_type,
        span=members[-1].value.span,
    )
    return maker.outside, Call(primitive, tuple(maker.args), ty=ty, span=members[-1].value.span)


def _typed(ty: Type | None) -> Type:
    if ty is None:
        raise TypeError("fusion needs a typed program")
    return ty


class _Maker:
    def __init__(
        self, members: set[Var], outputs: set[Var], tuples: Mapping[Var, Tuple], fills: Mapping[Var, Call]
    ) -> None:
        self.members = members
        self.outputs = outputs
        self.tuples = tuples
        self.fills = fills
        self.params: list[Var] = []
        self.args: list[Expr] = []
        self.body: list[Binding] = []
        self.outside: list[Binding] = []
        self.inner: dict[Var, Expr] = {}
        self._constants: dict[int, Var] = {}
        # Copies of one operation that meet here, of which a reader each was given one (`relay.transform.recompute`), are one.
        self._made: dict[object, Var] = {}

    def add(self, member: Binding) -> None:
        value = member.value
        match value:
            case Call():
                args = tuple([self.read(a) for a in value.args])
                value = Call(value.fn, args, value.attrs, value.type_args, value.ty, value.span)
            case Proj():
                value = Proj(self.read(value.tuple), value.index, value.ty, value.span)
            case _:
                raise AssertionError(f"{type(value).__name__} in a primitive")
        var = member.var
        key = operation_key(value)
        before = self._made.setdefault(key, var) if key is not None else var
        if var in self.outputs:  # the outside keeps the variable itself
            var = Var(var.name, None, var.ty, var.span)
        elif before is not var and before.ty == var.ty:
            self.inner[var] = self.inner[before]
            return
        self.inner[member.var] = var
        self.body.append(Binding(var, value))

    def read(self, e: Expr) -> Expr:
        """What an operand is inside."""
        match e:
            case Var():
                known = self.inner.get(e)
                if known is not None:
                    return known
                if isinstance(e.ty, TupleType):
                    return self._tuple(e, e.ty)
                fill = self.fills.get(e)
                if fill is not None:
                    self.inner[e] = made = Var(e.name, None, e.ty, e.span)
                    self.body.append(Binding(made, fill))
                    return made
                self.inner[e] = new = self._param(e.name, e.ty, e)
                return new
            case Constant():
                if e.data.size == 1:
                    return e
                known = self._constants.get(id(e.data))
                if known is None:
                    ty = e.ty or TensorType(e.data.shape, e.dtype)
                    known = self._constants[id(e.data)] = self._param("constant", ty, e)
                return known
            case _:
                return e

    def _tuple(self, e: Var, ty: TupleType) -> Expr:
        definition = self.tuples.get(e)
        if definition is not None:
            fields = tuple(self.read(f) for f in definition.fields)
        else:
            fields = ()
            for n, field in enumerate(ty.fields):
                part = Var(f"{e.name}_{n}", None, field)
                self.outside.append(Binding(part, Proj(e, n, field)))
                fields += (self.read(part),)
        inner = Var(e.name, None, ty)
        self.body.append(Binding(inner, Tuple(fields, ty)))
        self.inner[e] = inner
        return inner

    def _param(self, name: str, ty: Type | None, arg: Expr) -> Var:
        param = Var(name, None, ty)
        self.params.append(param)
        self.args.append(arg)
        return param
