"""Device placement by unification (dissertation, section 5.4.2).

Every tensor variable has a device domain. What a kernel reads and writes is on one device; views, tuples, projections, branches,
calls and returns pass domains on; only ``device_copy`` joins two. Domains that nothing constrains are the host's, where shape
functions and scalars always are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from relay.ir.diagnostics import CompileError
from relay.ir.expr import Binding, Block, Call, Expr, Function, GlobalVar, If, Match, OpRef, Proj, Tuple, Var
from relay.ir.module import Module
from relay.ir.types import TensorType

DEVICES: Mapping[str, int] = {"cpu": 0, "fake": 1}


def device_index(name: str) -> int:
    """The number of a device. Raises CompileError for a name that is not one."""
    found = DEVICES.get(name)
    if found is None:
        raise CompileError(f"unknown device {name!r}", hint=f"devices are {', '.join(DEVICES)}")
    return found


class _Domains:
    def __init__(self) -> None:
        self.parent: dict[object, object] = {}
        self.device: dict[object, str] = {}

    def find(self, x: object) -> object:
        root = x
        while (up := self.parent.get(root, root)) is not root:
            root = up
        while (up := self.parent.get(x, x)) is not root and up is not x:
            self.parent[x] = root
            x = up
        return root

    def union(self, a: object, b: object, where: Expr) -> None:
        ra, rb = self.find(a), self.find(b)
        if ra is rb:
            return
        da, db = self.device.get(ra), self.device.get(rb)
        if da is not None and db is not None and da != db:
            raise CompileError(
                f"operands on two devices, {da} and {db}, meet in one operation",
                where.span,
                hint="insert device_copy where the data should move",
            )
        self.parent[ra] = rb
        if da is not None:
            self.device[rb] = da

    def put(self, x: object, device: str, where: Expr) -> None:
        root = self.find(x)
        old = self.device.setdefault(root, device)
        if old != device:
            raise CompileError(
                f"a value is needed on {device} but lives on {old}", where.span, hint="insert device_copy"
            )


def _is_placed(e: Expr) -> bool:
    """Whether a value has a domain: anything but a scalar, which is always on the host."""
    return isinstance(e, Var) and not (isinstance(e.ty, TensorType) and e.ty.shape == ())


def place_devices(module: Module, entries: Collection[str]) -> dict[Var, int]:
    """The device of every variable that is not on the host. Raises CompileError where devices conflict.

    What callers from outside pass to ``entries`` is on the host, unless a parameter's type names another device.
    """
    if not any(_has_copy(f.body) for f in module.functions.values()):
        return {}
    domains = _Domains()
    variables: list[Var] = []
    for name, fn in module.functions.items():
        for param in fn.params:
            variables.append(param)
            named = param.ty.device if isinstance(param.ty, TensorType) else None
            if named is not None:
                domains.put(param, named, fn)
            elif name in entries and _is_placed(param):
                domains.put(param, "cpu", fn)
        for binding in _bindings(fn.body):
            variables.append(binding.var)
            _constrain(binding, domains, module)
        assert isinstance(fn.body, Block)
        if _is_placed(fn.body.result):
            domains.union(fn.body.result, name, fn)
    out: dict[Var, int] = {}
    for var in variables:
        device = domains.device.get(domains.find(var), "cpu")
        if device != "cpu":
            out[var] = device_index(device)
    return out


def _bindings(body: Expr) -> Iterator[Binding]:
    todo = [body]
    while todo:
        block = todo.pop()
        assert isinstance(block, Block)
        for binding in block.bindings:
            yield binding
            match binding.value:
                case If(then=then, orelse=orelse):
                    todo += (then, orelse)
                case Match(clauses=clauses):
                    todo += (c.body for c in clauses)
                case _:
                    pass


def _has_copy(body: Expr) -> bool:
    return any(
        isinstance(b.value, Call) and isinstance(b.value.fn, OpRef) and b.value.fn.name == "device_copy"
        for b in _bindings(body)
    )


def _constrain(binding: Binding, domains: _Domains, module: Module) -> None:
    var, value = binding.var, binding.value

    def same(e: Expr) -> None:
        if _is_placed(e):
            domains.union(e, var, value)

    match value:
        case Call(fn=OpRef(name="device_copy")):
            domains.put(var, str(value.attrs["device"]), value)
        case Call(fn=Function()) | Tuple() | Call(fn=OpRef()):
            for operand in value.args if isinstance(value, Call) else value.fields:
                same(operand)
        case Call(fn=GlobalVar(name=name)):
            callee = module.functions[name]
            for arg, param in zip(value.args, callee.params, strict=True):
                if _is_placed(arg):
                    domains.union(arg, param, value)
            domains.union(var, name, value)
        case Var():
            same(value)
        case Proj():
            same(value.tuple)
        case If():
            for block in (value.then, value.orelse):
                assert isinstance(block, Block)
                same(block.result)
        case Match():
            for clause in value.clauses:
                assert isinstance(clause.body, Block)
                same(clause.body.result)
        case _:
            pass
