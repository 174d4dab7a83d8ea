"""The pass that batches: recursion over a structure becomes rows of tensors, level by level.

See docs/batching.md; the parts are `clauses` (what is structural), `lift` (a clause for many nodes), `describe` (the walk), `build`;
`requests` makes one batch of several calls.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType
from typing import ClassVar

from relay.ir.effects import Effect
from relay.ir.expr import Attrs, Binding, Call, Function, GlobalVar, Grad, Match
from relay.ir.graph import below, components
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.types import TypeDef
from relay.transform.access import AccessTable
from relay.transform.ad.entering import definition
from relay.transform.base import Pass
from relay.transform.batching.build import Builder
from relay.transform.batching.choices import with_both_branches
from relay.transform.batching.clauses import Group, NotStructural, branches, calls_of, data_types, group_of
from relay.transform.batching.gains import (
    WORTH_LISTS,
    WORTH_STACKING,
    copies_more_than_it_shares,
    multiplies_by,
    multiplies_little,
)
from relay.transform.batching.left_folds import from_the_end
from relay.transform.batching.lists import ListForm, list_form
from relay.transform.batching.phases import Phases
from relay.transform.batching.read_results import reading_results
from relay.transform.batching.requests import (
    ANSWERS,
    EACH,
    IN_TURN,
    ROWS,
    SIDE_BY_SIDE,
    STACKED,
    TOGETHER,
    Requests,
    by_one_request,
    differing,
    list_type,
    listing,
    requests_of,
)
from relay.transform.batching.sequences import Listed, listed_entry
from relay.transform.blocks import all_bindings, body_of, is_closure, is_primitive
from relay.transform.build import type_of
from relay.transform.dead_code import BESIDE
from relay.transform.failing import may_fail
from relay.transform.fold_terms import one_term
from relay.transform.function_types import unused
from relay.transform.inline import inline_all
from relay.transform.uses import globals_used
from relay.typing.effects import Effects

# The function attribute that says what became of a recursive function.
NOTE = "batching"

_OWN_MATRICES = "nodes mostly multiply by matrices of their own, so nothing is gained"
_NO_GAIN = "it has no product of matrices, so nothing is gained"


@record(frozen=True, slots=True)
class _Members:
    """A group of recursive functions: those that are ``kept``, because they take a value apart, with all else inlined, and the functions
    over lists that these call: those that are done to all items at once, and left folds as functions of the list ``turned`` round."""

    kept: list[str]
    inlined: dict[str, Function]
    forms: dict[str, tuple[ListForm, Function]]
    turned: dict[str, Function]


@record(frozen=True, slots=True)
class _Work:
    """What is known of a module (the ``names`` that its functions mention; which of these are ``recursive``, callees first), and what has
    been made of its ``functions`` and ``types`` so far. ``choices``: both branches of a choice between what costs little may be
    computed. ``formless`` are functions that were found to go through no list."""

    module: Module
    names: Mapping[str, Sequence[str]]
    recursive: Sequence[str]
    effects: Effects
    table: AccessTable
    functions: dict[str, Function]
    types: dict[str, TypeDef]
    choices: bool
    groups: dict[tuple[tuple[str, ...], bool], _Members] = field(default_factory=dict)
    formless: set[str] = field(default_factory=set)

    def members(self, names: Sequence[str], many: bool = False) -> _Members:
        """These recursive functions as one group; of ``many`` requests."""
        key = tuple(names), many
        found = self.groups.get(key)
        if found is None:
            kept = _kept(self.module, names)
            found = self.groups[key] = _Members(kept, {n: self.inlined(n, kept) for n in kept}, {}, {})
            found.forms.update(self.list_forms(found.inlined))
            for name, function in found.inlined.items():
                turned = None if name in found.forms else from_the_end(self.module, name, function, alone=many)
                if turned is not None:
                    found.turned[name] = turned
        return found

    def inlined(self, name: str, keep: Sequence[str]) -> Function:
        """A function with what it calls inlined, but for the functions to ``keep`` and recursion."""
        function = inline_all(self.module, self.names, name, keep)
        return with_both_branches(function, self._is_cheap) if self.choices else function

    def listed(self, entry: str) -> Listed:
        """An entry of tensors as one of lists of their rows. Raises NotStructural."""
        one = inline_all(self.module, self.names, entry, ())
        return listed_entry(self.module, entry, one, self.effects, self.functions, self.types)

    def _is_cheap(self, call: Call) -> bool:
        access = self.table.of(call)
        return (
            access is not None
            and access.kind != "contraction"
            and self.effects.of(call) == Effect.PURE
            and not may_fail(call)
        )

    def list_forms(self, inlined: Mapping[str, Function]) -> dict[str, tuple[ListForm, Function]]:
        """The functions over lists that these functions call, among them or not. Where an item is a list itself, which such a function
        goes through, items are nodes, and the function that goes through them is recursion like other."""
        out: dict[str, tuple[ListForm, Function]] = {}
        todo = list(inlined)
        seen = set(todo)
        while todo:
            name = todo.pop()
            if name in self.formless and name not in inlined:
                continue
            function = inlined.get(name) or self.inlined(name, [name])
            # What is recursive itself was not there to be put together before it was inlined.
            function = one_term(self.module, name, function) or function
            form = list_form(self.module, name, function)
            if form is not None:
                out[name] = (form, function)
            elif name not in inlined:
                self.formless.add(name)
            for called in globals_used(function) if name in inlined else ():
                if called not in seen and called in self.module.functions:
                    seen.add(called)
                    todo.append(called)
        nested = {n for n, (form, _) in out.items() if n in inlined and _calls(form.code, out)}
        return {n: form for n, form in out.items() if n not in nested}

    def asked(
        self, entry: str, members: Sequence[str], single: bool = False, alone: bool = True
    ) -> tuple[Requests, Group, list[str]]:
        """The requests of an entry above recursive functions, all these as one group, and the functions that are in it; with folds from
        the left that stand ``alone``. Raises NotStructural."""
        module, group = self.module, self.members(members, alone)
        inlined = {**group.inlined, **group.turned}
        one = None if entry in members else self.inlined(entry, group.kept)
        taken = frozenset(self.functions), frozenset(self.types)
        asked = requests_of(entry, module.functions[entry], one, *taken, single=single)
        inlined[asked.name] = asked.function
        return asked, self.group_of(asked, inlined, group, single), list(inlined)

    def group_of(
        self, asked: Requests, inlined: Mapping[str, Function], members: _Members, single: bool = False
    ) -> Group:
        """What is done with requests and recursive functions below it as one group, ``inlined`` having all of these. Raises
        NotStructural."""
        forms = self.list_forms(inlined)
        walked = [n for n in inlined if n not in forms]
        turned = frozenset(members.turned)
        return group_of(self.module, asked.name, walked, inlined, forms, asked.parts, turned, single)

    def phases(self, entry: str, members: Sequence[str]) -> tuple[Phases, list[tuple[Requests, Group]], TypeDef] | None:
        """The phases of the requests of an entry above recursive functions, each as one group with those of them that it calls, and the
        type of lists of requests; None where there is one phase. Raises NotStructural."""
        function = self.module.functions[entry]
        found = Phases(self.inlined(entry, self.members(members, many=True).kept), differing(function))
        if entry in members or not found.cut():
            return None
        kind = list_type(frozenset(self.types))
        names: set[str] = set(self.functions)
        out: list[tuple[Requests, Group]] = []
        for number, phase in enumerate(found.phases, 1):
            called = below(self.names, globals_used(phase.function))
            group = self.members([n for n in members if n in called], many=True)
            name = unused(f"{entry}.requests.{number}", names)
            names.add(name)
            try:
                asked = listing(name, phase.function, range(len(phase.reads)), kind)
                inlined = {**group.inlined, **group.turned, name: asked.function}
                out.append((asked, self.group_of(asked, inlined, group)))
            except NotStructural as why:
                raise NotStructural(f"in phase {number} of {len(found.phases)} {why}") from None
        return found, out, kind


@record(frozen=True, slots=True)
class BatchStructure(Pass):
    """Turn recursion over algebraic values into batched code, where that is legal and something is gained.

    Before: blocks with named sizes, matches compiled, functions lifted. After: blocks; a function whose recursion follows a
    structure (see `clauses`) linearises it and computes level by level, beside a function of its name where it reads values that it
    has made (`read_results`); the attribute ``batching`` of every recursive function says what was done, or why nothing. A recursion
    without contractions is left alone (a level would be no faster than its nodes), unless ``always``. An entry whose work is such
    recursion gets a function beside it that answers many requests as one batch (`requests`); its attribute ``requests`` says so, or
    why not. ``values``: functions may make values of data types, which is put together by a routine that has no derivative, and both
    branches of a choice may be computed (`choices`). ``together``: what is under a gradient goes through all its structures at once.
    """

    name: ClassVar[str] = "batch_structure"
    always: bool = False
    values: bool = True
    together: bool = False
    entries: tuple[str, ...] | str = "main"

    def __call__(self, module: Module) -> Module:
        left: set[str] = set()
        while True:
            read, groups = reading_results(module, left) if self.values else (module, [])
            out = self._all(read)
            alone = [g for g in groups if not any(_is_batched(out.functions[n]) for n in g)]
            if not alone:
                return replace(
                    out, functions=_noted_by_callers(out.functions, {n: old for g in groups for n, old in g.items()})
                )
            left.update(old for g in alone for old in g.values())  # nothing is gained by giving a pair

    def _all(self, module: Module) -> Module:
        work = self._work(module)
        names = work.names
        found = components(names)
        circles = [c for c in found if len(c) > 1 or c[0] in names[c[0]]]
        above, outside = _above_contractions(work, found), _used_outside(names, found)
        for component in circles:
            if any(is_primitive(work.functions[n]) for n in component):
                continue
            roots = [n for n in component if n in outside] or component
            # Where the function that others call does more than follow the structure, one below it may do just that.
            for root in [*roots, *(n for n in component if n not in roots)]:
                if root in roots or not any(_is_batched(work.functions[n]) for n in component):
                    work.functions.update(self._batch(work, root, component, self.always or root in above))
        for entry in (self.entries,) if isinstance(self.entries, str) else self.entries:
            if entry in module.functions:
                self._requests(work, entry)
                if self.values:
                    self._together(work, entry)
        for name in _under_gradients(module) if self.together else []:
            self._together(work, name, items=True)
        return replace(module, functions=work.functions, types=work.types)

    def _work(self, module: Module) -> _Work:
        names = {n: list(dict.fromkeys(globals_used(f))) for n, f in module.functions.items()}
        circles = [c for c in components(names) if len(c) > 1 or c[0] in names[c[0]]]
        recursive = [n for c in circles for n in c if not is_primitive(module.functions[n])]
        functions, types = dict(module.functions), dict(module.types)
        return _Work(module, names, recursive, Effects(module), AccessTable(), functions, types, self.values)

    def _requests(self, work: _Work, entry: str) -> None:
        """Put what answers many requests of an entry beside it, where its work is recursion over structures; say what becomes of
        them."""
        members = _recursive_below(work, entry)
        try:
            if not members:
                raise NotStructural("it has no recursion")
            if entry not in members and not any(data_types(type_of(p)) for p in work.module.functions[entry].params):
                made, kinds = self._answering_lists(work, entry)
            else:
                made, kind = self._answering(work, entry, members)
                kinds = [kind]
            work.functions.update(made)
            work.types.update((kind.name, kind) for kind in kinds)
            answer = TOGETHER
        except NotStructural as why:
            # Whether it may fail is not asked, which takes long to tell of some definitions.
            apart = Effects(work.module).latent(work.module.functions[entry]) & (
                Effect.READS | Effect.WRITES | Effect.HOST
            )
            answer = f"{IN_TURN if apart else SIDE_BY_SIDE}: {why}"
        function = work.functions[entry]
        work.functions[entry] = replace(function, attrs={**function.attrs, ANSWERS: answer})

    def _answering(self, work: _Work, entry: str, members: Sequence[str]) -> tuple[dict[str, Function], TypeDef]:
        """The functions that answer many requests of an entry as one batch, and the type of lists of requests. Raises NotStructural."""
        try:
            asked, group, _ = work.asked(entry, members)
            self._check_gain(work, [group])
            return self._built(work, group, asked.name), asked.type
        except NotStructural:
            phases = work.phases(entry, members)
            if phases is None:
                raise
        cut, groups, kind = phases
        self._check_gain(work, [g for _, g in groups])
        made: dict[str, Function] = {}
        for number, (asked, group) in enumerate(groups):
            try:
                made |= self._built(work, group, asked.name, some=number == 0)
            except NotStructural as why:
                raise NotStructural(f"in phase {number + 1} of {len(groups)} {why}") from None
        name = unused(f"{entry}.requests", work.functions)
        attrs: Attrs = MappingProxyType({BESIDE: entry, EACH: cut.each})
        return {**made, name: cut.driver(name, [a for a, _ in groups], kind, attrs)}, kind

    def _answering_lists(self, work: _Work, entry: str) -> tuple[dict[str, Function], list[TypeDef]]:
        """The same where what requests bring are sequences, tensors, with the types of lists of these. Raises NotStructural."""
        listed = work.listed(entry)
        least = WORTH_STACKING if listed.stacked else WORTH_LISTS if listed.makes else 0
        if least and not multiplies_by(listed.functions.values(), least, work.table):
            raise NotStructural("its products are so small that rows are not worth being copied")
        functions = {**work.module.functions, **listed.functions, entry: listed.entry}
        types = {**work.types, listed.type.name: listed.type}
        other = self._work(replace(work.module, functions=functions, types=types))
        other.functions.update(work.functions)
        made, kind = self._answering(other, entry, _recursive_below(other, entry))
        rows: Attrs = MappingProxyType({ROWS: listed.rows, STACKED: listed.stacked})
        made = {
            n: replace(f, attrs={**f.attrs, **rows}) if f.attrs.get(BESIDE) == entry else f for n, f in made.items()
        }
        # What could not be levels.
        names = {**other.names, **{n: globals_used(f) for n, f in made.items()}}
        made |= {n: listed.functions[n] for n in below(names, list(made)) if n in listed.functions}
        return made, [kind, listed.type]

    def _check_gain(self, work: _Work, groups: Sequence[Group]) -> None:
        if not any(self._gains(work, g) for g in groups):
            raise NotStructural("its recursion has no product of matrices, so nothing is gained")

    def _together(self, work: _Work, entry: str, items: bool = False) -> None:
        """Where an entry goes through several structures (or one for each item of a list), go through all of them at once; so where parts
        stand side by side only seen from the entry (a recurrent cell over sentences, over the words of each: the outer fold by itself
        is handed what it has made, see `left_folds`). ``items``: so, too, where only what is done to the items of its lists stands side
        by side."""
        members = _recursive_below(work, entry)
        if not members or entry in members:
            return
        try:
            asked, group, called = work.asked(entry, members, single=True, alone=items)
            if not self.values and any(data_types(f.result) for f in group.functions):
                return
            first = [c for c in group.clauses if c.function == 0]
            several = any(len(calls_of(c, called)) > 1 or any(_calls(i.code) for i in c.lists.values()) for c in first)
            unbatched = not any(_is_batched(work.functions[n]) for n in members)
            beside = unbatched and any(branches(c, called) for c in group.clauses if c.function)
            lists = [i.code for c in group.clauses for i in c.lists.values()] if items and unbatched else []
            gains = any(multiplies_little(code, work.table) for code in lists)
            if not gains and not ((several or beside) and self._gains(work, group)):
                return
            made = self._built(work, group, asked.name, single=True)
        except NotStructural:
            return
        work.functions.update({n: _noted(f, "by level") if n == asked.name else f for n, f in made.items()})
        work.functions[entry] = by_one_request(work.functions[entry], asked)
        work.types[asked.type.name] = asked.type

    def _gains(self, work: _Work, group: Group) -> bool:
        """Whether levels of what requests go through are faster than their nodes."""
        return self.always or any(_has_contraction(c.all_bindings(), work.table) for c in group.clauses if c.function)

    def _batch(self, work: _Work, root: str, members: Sequence[str], gains: bool) -> dict[str, Function]:
        """The function ``root`` of a component and what it calls level by level, or with a note that says why not."""
        try:
            if root not in _kept(work.module, [root]):
                raise NotStructural(f"@{root} does not take an argument apart before anything else")
            if not gains:
                raise NotStructural(_NO_GAIN)
            # What the parts of a part are given to may be recursive functions of their own (an expression in a statement).
            others = [n for n in _recursive_below(work, root) if n not in members]
            for group in [[*members, *others], members] if others else [members]:
                try:
                    made = self._by_level(work, root, group)
                    break
                except NotStructural:
                    if group is members:
                        raise
        except NotStructural as why:
            return {root: _noted(work.module.functions[root], f"no: {why}")}
        return {n: _noted(f, "by level") if n == root else f for n, f in made.items()}

    def _by_level(self, work: _Work, root: str, members: Sequence[str]) -> dict[str, Function]:
        """The function ``root`` level by level, with these recursive functions as one group. Raises NotStructural."""
        group = work.members(members)
        forms = {n: f for n, f in group.forms.items() if n != root}
        turned = {n: f for n, f in group.turned.items() if n != root}
        walked = [n for n in group.kept if n not in forms]
        found = group_of(work.module, root, walked, {**group.inlined, **turned}, forms, turned=frozenset(turned))
        if not self.values and any(data_types(f.result) for f in found.functions):
            raise NotStructural("it makes values of a data type")
        if not self.always and not any(_has_contraction(c.all_bindings(), work.table) for c in found.clauses):
            raise NotStructural(_NO_GAIN)
        return self._built(work, found, root)

    def _built(
        self, work: _Work, group: Group, name: str, single: bool = False, some: bool = True
    ) -> dict[str, Function]:
        """The functions of a group as levels. Raises NotStructural."""
        group = replace(group, differentiated=not self.values)
        made = Builder(group, work.effects, name, frozenset(work.functions), single, some).build()
        # (A part that is reached twice is computed once by levels, however large what it holds is; but not where it is given something.)
        given = all(f.positions for f in group.functions[1 if group.many else 0 :])
        if given and not self.always and copies_more_than_it_shares(made.values(), work.table):
            raise NotStructural(_OWN_MATRICES)
        return made


def _under_gradients(module: Module) -> list[str]:
    """The functions whose gradient is taken, by themselves or with what they capture."""
    out: dict[str, None] = {}
    for function in module.functions.values():
        bindings = [] if is_primitive(function) else list(all_bindings(body_of(function)))
        made = {b.var: b.value for b in bindings}
        for value in (b.value for b in bindings):
            if isinstance(value, Grad) and not value.forward:
                target = definition(value.fn, made)
                target = target.args[0] if is_closure(target) else target
                if isinstance(target, GlobalVar):
                    out[target.name] = None
    return list(out)


def _recursive_below(work: _Work, entry: str) -> list[str]:
    """The recursive functions that an entry reaches."""
    found = below(work.names, [entry])
    return [n for n in work.recursive if n in found]


def _calls(code: Sequence[Binding], names: Container[str] | None = None) -> bool:
    """Whether functions of the module are called, of these names where they are given."""
    called = (b.value.fn for b in code if isinstance(b.value, Call))
    return any(isinstance(fn, GlobalVar) and (names is None or fn.name in names) for fn in called)


def _noted(function: Function, note: str) -> Function:
    return replace(function, attrs={**function.attrs, NOTE: note})


def _noted_by_callers(functions: Mapping[str, Function], beside: Mapping[str, str]) -> dict[str, Function]:
    """What is said of functions that stand beside others is said of these."""
    out = dict(functions)
    for name, old in beside.items():
        attrs = dict(functions[name].attrs)
        note = attrs.pop(NOTE, None)
        if note is not None:
            out[old] = replace(functions[old], attrs={**functions[old].attrs, NOTE: note})
            out[name] = replace(functions[name], attrs=attrs)
    return out


def _is_batched(function: Function) -> bool:
    return function.attrs.get(NOTE) == "by level"


def _kept(module: Module, members: Sequence[str]) -> list[str]:
    """Those of a group of functions that take a value apart; what merely stands between them is inlined."""
    return [n for n in members if any(isinstance(b.value, Match) for b in body_of(module.functions[n]).bindings)]


def _has_contraction(bindings: Iterable[Binding], table: AccessTable) -> bool:
    for binding in bindings:
        if isinstance(binding.value, Call):
            access = table.of(binding.value)
            if access is not None and access.kind == "contraction":
                return True
    return False


def _above_contractions(work: _Work, found: Sequence[Sequence[str]]) -> set[str]:
    """The functions that multiply matrices, or call what does; ``found``: the components of the module, callees first."""
    out: set[str] = set()
    for component in found:
        inside = (work.module.functions[n] for n in component)
        below = any(called in out for n in component for called in work.names[n])
        if below or any(not is_primitive(f) and _has_contraction(all_bindings(body_of(f)), work.table) for f in inside):
            out.update(component)
    return out


def _used_outside(names: Mapping[str, Sequence[str]], found: Sequence[Sequence[str]]) -> set[str]:
    """The functions that others than those of their own component use."""
    home = {n: number for number, component in enumerate(found) for n in component}
    return {used for n, all_used in names.items() for used in all_used if home.get(used) != home[n]}
