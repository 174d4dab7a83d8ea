"""Cotangents of one operator's operands that are made of the same things are made together.

    let %dq = my.attention.vjp0(%q, %k, %v, %d);        let %all = my.attention.vjp0_1_2(%q, %k, %v, %d);
    let %dk = my.attention.vjp1(%q, %k, %v, %d);   ->   let %dq = %all.0;
    let %dv = my.attention.vjp2(%q, %k, %v, %d);        let %dk = %all.1; ...

Each by itself would make the scores and the shares anew: what the operator has computed on its way, and what comes back through it.
That is left as it is where it is little beside the reading of operands and the writing of results, as for sums over rows: these are
better spent in the kernels of whatever is next to them.

`nn.attention_cotangents`, which gives more than three where it is asked to, is asked once for all that its calls are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from relay.ir.diagnostics import RelayError
from relay.ir.dim import shape_size
from relay.ir.dim_total import dim_typical
from relay.ir.expr import Binding, Block, Call, Expr, OpRef, Proj, Tuple, Var, attrs_key
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.trampoline import Step
from relay.ir.types import TensorType, TupleType, Type, mentions_any
from relay.op import registry
from relay.op.gradient import operand_signature
from relay.te.errors import DefinitionError, Undetermined
from relay.te.scalar import Reduce, iteration_count
from relay.te.tensor import Compute, Tensor, stages
from relay.transform.base import Pass
from relay.transform.blocks import map_bodies, nested_blocks, with_nested_blocks
from relay.transform.build import op_call, type_of
from relay.transform.cse import atom_key

# So many iterations have to be saved for each element of the operands and the results.
_SAVED = 4


@record(frozen=True, slots=True)
class JoinCotangents(Pass):
    """Make the cotangents of one operator together where they share much of what they compute.

    Before: typed blocks without copies of one call. After: the same values.
    """

    name: ClassVar[str] = "join_cotangents"

    def __call__(self, module: Module) -> Module:
        known: dict[object, bool] = {}
        return map_bodies(module, lambda b: _block(b, known))


def _block(block: Block, known: dict[object, bool]) -> Step[Block]:
    """``known``: what has been found out about calls (see `_share`)."""
    bindings: list[Binding] = []
    for binding in block.bindings:
        inner: list[Block] = []
        for b in nested_blocks(binding.value):
            inner.append((yield _block(b, known)))
        value = with_nested_blocks(binding.value, inner)
        bindings.append(binding if value is binding.value else replace(binding, value=value))
    groups: dict[object, list[int]] = {}
    for n, binding in enumerate(bindings):
        if isinstance(value := binding.value, Call) and (base := _differentiated(value)) is not None:
            groups.setdefault((base, *_operands_key(value)), []).append(n)
    made: dict[int, list[Binding]] = {}
    attentions: dict[object, list[int]] = {}
    for n, binding in enumerate(bindings):
        if isinstance(value := binding.value, Call) and _is_of_attention(value):
            attentions.setdefault(_attention_key(value), []).append(n)
    for members in attentions.values():
        if len(members) > 1:
            made |= dict(zip(members, _asked_once([bindings[n] for n in members]), strict=True))
    for members in groups.values():
        calls = [bindings[n] for n in members]
        if len(calls) > 1 and _share([b.value for b in calls], known):
            made |= dict(zip(members, _joined(calls), strict=True))
    if not made and all(a is b for a, b in zip(bindings, block.bindings, strict=True)):
        return block
    return replace(block, bindings=tuple(b for n, each in enumerate(bindings) for b in made.get(n, [each])))


def _differentiated(call: Call) -> str | None:
    """The operator that a call makes a cotangent of. (Those of cotangents have forms of their own.)"""
    if not isinstance(call.fn, OpRef):
        return None
    base, _, number = call.fn.name.rpartition(".vjp")
    return base if base and ".vjp" not in base and number.isdigit() else None


def _operands_key(call: Call) -> tuple[object, ...]:
    return attrs_key(call.attrs), *map(atom_key, call.args)


def _share(calls: Sequence[Expr], known: dict[object, bool]) -> bool:
    """Whether cotangents from the same operands share enough of what they compute."""
    (first, *_) = calls
    assert isinstance(first, Call)
    types = [type_of(a) for a in first.args]
    operands = [operand_signature(t) for t in types]
    if any(o is None for o in operands) or any(mentions_any(t) for t in types):
        return False
    names = [c.fn.name for c in calls if isinstance(c, Call) and isinstance(c.fn, OpRef)]
    key = (*names, attrs_key(first.attrs), *operands)
    if key not in known:
        known[key] = _saved(names, first, operands) >= _SAVED * sum(
            _elements(type_of(e)) for e in (*first.args, *calls)
        )
    return known[key]


def _saved(names: Sequence[str], call: Call, operands: Sequence[Any]) -> int:
    """How many iterations are saved where the cotangents of these names are one operator's results."""
    base, _, _ = names[0].rpartition(".vjp")
    forward = _traced(base, operands[:-1], call)
    if forward is None or sum(isinstance(s, Compute) for s in stages(forward)) < 2:
        return 0  # an operator of one sum has nothing on its way
    together = _traced(_together(names), operands, call)
    alone = [_traced(name, operands, call) for name in names]
    if together is None or any(a is None for a in alone):
        return 0
    return sum(_iterations(a) for a in alone if a is not None) - _iterations(together)


def _together(names: Sequence[str]) -> str:
    base, _, _ = names[0].rpartition(".vjp")
    return f"{base}.vjp{'_'.join(n.rpartition('.vjp')[2] for n in names)}"


def _traced(name: str, operands: Sequence[Any], call: Call) -> Sequence[Tensor] | None:
    try:
        return registry.trace(registry.get(name), operands, call.attrs).outputs
    except (Undetermined, DefinitionError, RelayError):
        return None


def _iterations(outputs: Sequence[Tensor]) -> int:
    """How many elements the stages of tensors compute and add up."""
    total = 0
    for stage in stages(outputs):
        if not isinstance(stage, Compute):
            continue
        for body in stage.bodies:
            over = body.axes if isinstance(body, Reduce) else ()
            total += iteration_count((*stage.axes, *over))
    return total


def _elements(ty: Type) -> int:
    if isinstance(ty, TupleType):
        return sum(_elements(t) for t in ty.fields)
    assert isinstance(ty, TensorType) and isinstance(ty.shape, tuple)
    return dim_typical(shape_size(ty.shape))


def _joined(calls: Sequence[Binding]) -> list[list[Binding]]:
    """What takes the place of each call: the first makes all."""
    values = [c.value for c in calls]
    (first, *_) = values
    assert isinstance(first, Call)
    names = [v.fn.name for v in values if isinstance(v, Call) and isinstance(v.fn, OpRef)]
    call = op_call(_together(names), first.args, first.attrs, first.span)
    whole = Var("cotangents", None, call.ty)
    parts = [[replace(c, value=Proj(whole, n, c.var.ty))] for n, c in enumerate(calls)]
    parts[0].insert(0, Binding(whole, call))
    return parts


def _is_of_attention(call: Call) -> bool:
    return isinstance(call.fn, OpRef) and call.fn.name == "nn.attention_cotangents"


def _attention_key(call: Call) -> object:
    """What calls have in common that give cotangents of one attention."""
    attrs = {name: value for name, value in call.attrs.items() if name != "also"}
    return attrs_key(attrs), *map(atom_key, call.args)


def _also(call: Expr) -> tuple[int, ...]:
    assert isinstance(call, Call)
    numbers = call.attrs.get("also", ())
    assert isinstance(numbers, tuple)
    return tuple(n for n in numbers if isinstance(n, int))


def _asked_once(calls: Sequence[Binding]) -> list[list[Binding]]:
    """What takes the place of each call: the first gives all, and each has its own of them."""
    first = calls[0].value
    assert isinstance(first, Call)
    also = sorted({n for c in calls for n in _also(c.value)})
    call = op_call("nn.attention_cotangents", first.args, {**first.attrs, "also": tuple(also)}, first.span)
    whole = Var("cotangents", None, call.ty)
    out: list[list[Binding]] = []
    for c in calls:
        assert isinstance(c.var.ty, TupleType)
        places = (0, 1, 2, *(3 + also.index(n) for n in _also(c.value)))
        parts = [
            Binding(Var("cotangent", None, ty), Proj(whole, at, ty))
            for at, ty in zip(places, c.var.ty.fields, strict=True)
        ]
        out.append([*parts, replace(c, value=Tuple(tuple(p.var for p in parts), c.var.ty))])
    out[0].insert(0, Binding(whole, call))
    return out
