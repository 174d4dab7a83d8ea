"""A primitive as one tensor-expression graph: the definitions of its operator calls, composed.

Every call is traced with the dims of its argument types; its placeholders are then replaced by the producing tensors
(by literals where the argument is a constant inside the primitive), so that what remains are stages from the
primitive's parameters to its outputs. A result that is a parameter, or occurs twice, becomes a copy: every output has
its own stage output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from relay import te
from relay.ir.diagnostics import DividedByZero, RelayError
from relay.ir.dim import Dim, dim_mul, dim_sub
from relay.ir.expr import Block, Call, Constant, Expr, Function, OpRef, Proj, Tuple, Var
from relay.ir.record import record
from relay.ir.types import TensorType, Type
from relay.ir.walk import post_order
from relay.op import registry
from relay.op.foreign import is_foreign
from relay.te.equal_stages import with_equal_stages_shared
from relay.te.rewrite import output_dtypes, renewed
from relay.te.scalar import Const, Load, Scalar, walk
from relay.te.tensor import Placeholder, Tensor
from relay.typing.relations import located, solved_signature
from relay.typing.text import type_text


class PlanError(RelayError):
    """A primitive that cannot be planned: it holds something other than operator calls on tensors of known rank."""


@record(frozen=True, slots=True, eq=False)
class TeGraph:
    """``inputs``: a placeholder per parameter, in order. ``outputs``: the tensors of the result, none of them an
    input. ``foreign``: a definition in it is not this package's, and may read at indices that nothing bounds; dims
    that are not negative then, by what such definitions demand, are ``assumed``. ``seldom``: it is computed for sizes
    that are hardly ever given, so little code counts for more than speed. ``fewest``: it is computed for sizes of which these dims are
    so much or more."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    foreign: bool = False
    assumed: tuple[Dim, ...] = ()
    seldom: bool = False
    fewest: tuple[tuple[Dim, int], ...] = ()

    def stages_of(self, numbers: frozenset[int]) -> frozenset[int]:
        """The ids of the stages of inputs with these numbers."""
        return frozenset(id(self.inputs[n].stage) for n in numbers)


@record(frozen=True, slots=True, eq=False)
class Literal:
    """A constant of one element inside the primitive; to operators it has the shape its constant has (``()``,
    ``(1,)``)."""

    value: Const
    shape: tuple[int, ...]

    @property
    def dtype(self) -> str:
        return self.value.dtype

    def tensor(self) -> Tensor:
        """The literal as a tensor with a stage of its own."""
        return te.compute(self.shape, lambda *_: self.value, "literal")


# What a variable of the primitive stands for: a tensor, a literal, or a tuple of such.
Value = Tensor | Literal | tuple["Value", ...]


def te_graph(primitive: Function) -> TeGraph:
    """Compose the te definitions of a primitive's operator calls. Raises PlanError for anything that is not one."""
    inputs: list[Tensor] = []
    env: dict[Var, Value] = {}
    for n, param in enumerate(primitive.params):
        shape, dtype = _tensor_type(param.ty or param.annotation, param.name)
        tensor = te.placeholder(f"p{n}", shape, dtype)
        inputs.append(tensor)
        env[param] = tensor
    body = primitive.body
    result: Expr = body
    if isinstance(body, Block):
        for binding in body.bindings:
            env[binding.var] = _value(binding.value, env)
        result = body.result
    flat = _flatten(_value(result, env))
    outputs: list[Tensor] = []
    taken: set[tuple[int, int]] = set()
    tensors = (value.tensor() if isinstance(value, Literal) else value for value in flat)
    for value in with_equal_stages_shared([*tensors]):
        if isinstance(value.stage, Placeholder) or tensor_key(value) in taken:
            value = _copy(value)
        taken.add(tensor_key(value))
        outputs.append(value)
    called = {n.name for n in post_order(primitive) if isinstance(n, OpRef)}
    foreign = any(map(is_foreign, called))
    return TeGraph(tuple(inputs), tuple(outputs), foreign, tuple(_demanded(primitive)) if foreign else ())


def _demanded(primitive: Function) -> Iterator[Dim]:
    """What the calls in a primitive demand of sizes, as dims that are not negative: it has been asked for before."""
    for call in post_order(primitive):
        if not isinstance(call, Call) or not isinstance(call.fn, OpRef):
            continue
        op, types = registry.get(call.fn.name), [a.ty for a in call.args if a.ty is not None]
        if op.shape_mode == "data" or op.kind not in ("expression", "view") or len(types) < len(call.args):
            continue
        for demand in solved_signature(op, tuple(types), call.attrs).demands:
            difference = dim_sub(demand.right, demand.left)
            yield difference
            if demand.relation == "==":
                yield dim_mul(-1, difference)


def _copy(tensor: Tensor) -> Tensor:
    return te.compute(tensor.shape, lambda *i: tensor[i], "copy")


def tensor_key(tensor: Tensor) -> tuple[int, int]:
    """What makes two tensors the same: the stage and the number of its output."""
    return id(tensor.stage), tensor.index


def loads(root: Scalar) -> list[Load]:
    """The loads of an expression, operands first."""
    return [n for n in walk(root) if isinstance(n, Load)]


def _value(e: Expr, env: dict[Var, Value]) -> Value:
    match e:
        case Var():
            return env[e]
        case Constant():
            return literal(e)
        case Tuple():
            return tuple(_value(f, env) for f in e.fields)
        case Proj():
            whole = _value(e.tuple, env)
            if not isinstance(whole, tuple):
                raise PlanError(f"a primitive projects field {e.index} of something that is not a tuple")
            return whole[e.index]
        case Call(fn=OpRef()):
            assert isinstance(e.fn, OpRef)
            return _call(registry.get(e.fn.name), e, env)
        case _:
            raise PlanError(f"a primitive holds operator calls, tuples and projections, not {type(e).__name__}")


def literal(e: Constant) -> Literal:
    """A constant of one element as an immediate value."""
    if e.data.size != 1:
        raise PlanError(f"a constant of {e.data.size} elements stands inside a primitive; only single elements may")
    item = e.data.reshape(()).item()
    if e.dtype == "bool":
        return Literal(Const(bool(item), e.dtype), e.data.shape)
    number = float(item) if e.dtype.startswith(("float", "bfloat")) else int(item)
    return Literal(Const(number, e.dtype), e.data.shape)


def _call(op: registry.Operator, call: Call, env: dict[Var, Value]) -> Value:
    """The output tensors of one operator call, its placeholders replaced by the arguments' tensors."""
    specs: list[tuple[Sequence[Dim], str] | list[tuple[Sequence[Dim], str]]] = []
    actual: list[Tensor | Literal] = []
    for spec, arg in zip(op.inputs, call.args, strict=False):
        group = _flatten(_value(arg, env))
        typed: list[tuple[Sequence[Dim], str]] = [(v.shape, v.dtype) for v in group]
        specs.append(typed if spec.variadic else typed[0])
        actual += group
    out_shape = None
    if op.shape_mode == "data":
        out_shape, _ = _tensor_type(call.ty, op.name)
    try:
        traced = registry.trace(op, specs, call.attrs, out_shape=out_shape)
    except DividedByZero as error:
        raise located(error, call.span) from None
    given = {tensor_key(p): v for p, v in zip(traced.inputs, actual, strict=True)}
    outputs = splice(traced.outputs, given)
    return outputs if traced.is_tuple else outputs[0]


def splice(outputs: Sequence[Tensor], given: Mapping[tuple[int, int], Tensor | Literal]) -> tuple[Tensor, ...]:
    """The outputs with placeholders replaced (``given`` by `tensor_key`), of stages and index variables of their own: a definition
    may have been run once for several calls."""
    new: dict[tuple[int, int], Tensor | Literal] = dict(given)

    def visit(node: Scalar) -> Scalar:
        if isinstance(node, Load) and isinstance(node.source, Tensor):
            value = new.get(tensor_key(node.source))
            if isinstance(value, Literal):
                return value.value
            if value is not None:
                return Load(value, node.indices, node.dtype)
        return node

    for stage in te.stages(outputs):
        if not isinstance(stage, Placeholder):
            replaced = renewed(stage, visit)
            for n, dtype in enumerate(output_dtypes(replaced)):
                new[id(stage), n] = Tensor(replaced, n, replaced.shape, dtype)
    spliced: list[Tensor] = []
    for t in outputs:
        value = new.get(tensor_key(t), t)
        # An operator may return its input as it is: the literal then needs a stage of its own.
        spliced.append(value.tensor() if isinstance(value, Literal) else value)
    return tuple(spliced)


def _flatten(value: Value) -> list[Tensor | Literal]:
    out: list[Tensor | Literal] = []
    todo: list[Value] = [value]
    while todo:
        v = todo.pop()
        if isinstance(v, tuple):
            todo.extend(reversed(v))
        else:
            out.append(v)
    return out


def _tensor_type(ty: Type | None, what: str) -> tuple[tuple[Dim, ...], str]:
    if not isinstance(ty, TensorType) or not isinstance(ty.shape, tuple) or not isinstance(ty.dtype, str):
        found = "a value without a type" if ty is None else type_text(ty)
        raise PlanError(f"{what} in a primitive must be a tensor of known rank and dtype, not {found}")
    return ty.shape, ty.dtype
