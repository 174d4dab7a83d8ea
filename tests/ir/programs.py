# ruff: noqa: E501
"""Programs in the text format: one for each construct, and some in the style of real networks."""

from __future__ import annotations

HEADER = '#[version = "0.0.5"]\n'

LISTS = "type List[A] {\n  Cons(A, List[A]),\n  Nil,\n}\n"

_BODIES: dict[str, str] = {
    "identity": "def @main(%x: float32) -> float32 { %x }",
    "no annotations": "def @main(%x, %y) { add(%x, %y) }",
    "no parameters": "def @main() { () }",
    "a lone quotient as type argument": "def @f[n: Dim](%x) { @id[Dim[n // 2]](@id[Dim[(n % 2)*(n // 3)], n // 2 + 1](%x)) }",
    "multilayer perceptron": """
def @main(%data: Tensor[(1, 1, 28, 28), float32], %fc1_weight: Tensor[(128, 784), float32], %fc1_bias: Tensor[(128), float32],
          %fc2_weight: Tensor[(10, 128), float32], %fc2_bias: Tensor[(10), float32]) -> Tensor[(1, 10), float32] {
  %0 = nn.batch_flatten(%data) /* ty=Tensor[(1, 784), float32] */;
  %1 = nn.dense(%0, %fc1_weight, units=128) /* ty=Tensor[(1, 128), float32] */;
  %2 = nn.bias_add(%1, %fc1_bias, axis=-1);
  %3 = nn.relu(%2);
  %4 = nn.dense(%3, %fc2_weight, units=10);
  %5 = nn.bias_add(%4, %fc2_bias, axis=-1);
  nn.softmax(%5) /* ty=Tensor[(1, 10), float32] */
}""",
    "residual block": """
def @main(%data: Tensor[(1, 16, 32, 32), float32], %w0: Tensor[(16, 16, 3, 3), float32], %gamma: Tensor[(16), float32],
          %beta: Tensor[(16), float32], %mean: Tensor[(16), float32], %var: Tensor[(16), float32]) {
  %0 = nn.batch_norm(%data, %gamma, %beta, %mean, %var, epsilon=2e-05f);
  %1 = %0.0;
  %2 = nn.relu(%1);
  %3 = nn.conv2d(%2, %w0, padding=[1, 1, 1, 1], channels=16, kernel_size=[3, 3]);
  %4 = nn.conv2d(%3, %w0, padding=[1, 1], channels=16, kernel_size=[3, 3], data_layout="NCHW", out_dtype="");
  add(%4, %1)
}""",
    "depthwise with layouts": """
def @main(%x: Tensor[(1, 8, 8, 4), uint8], %w: Tensor[(3, 3, 4, 1), int8]) {
  nn.conv2d(%x, %w, padding=[1, 1, 1, 1], groups=4, channels=4, kernel_size=[3, 3],
    data_layout="NHWC", kernel_layout="HWOI", out_dtype="int32")
}""",
    "fused primitive": """
def @main(%x: Tensor[(10), float32]) -> Tensor[(10), float32] {
  %1 = fn (%p0: Tensor[(10), float32], Primitive=1, hash="a1b2") -> Tensor[(10), float32] {
    %0 = exp(%p0);
    nn.relu(%0)
  };
  %1(%x)
}""",
    "partitioned for a compiler": """
def @main(%x: Tensor[(1, 4), float32]) { @part_0(%x) }
def @part_0(%i0: Tensor[(1, 4), float32], Compiler="dnnl", Primitive=1, Inline=1, global_symbol="part_0") -> Tensor[(1, 4), float32] {
  %1 = fn (%f0: Tensor[(1, 4), float32], PartitionedFromPattern="nn.relu_", Composite="dnnl.relu") { nn.relu(%f0) };
  %1(%i0)
}""",
    "recurrent cell": """
def @cell(%x: Tensor[(1, 4), float32], %h: Tensor[(1, 8), float32], %wi: Tensor[(8, 4), float32], %wh: Tensor[(8, 8), float32]) {
  let %i = nn.dense(%x, %wi, units=None);
  let %r = nn.dense(%h, %wh);
  tanh(%i + %r)
}
def @main(%xs: List[Tensor[(1, 4), float32]], %h: Tensor[(1, 8), float32], %wi: Tensor[(8, 4), float32],
          %wh: Tensor[(8, 8), float32]) -> Tensor[(1, 8), float32] {
  match (%xs) {
    Cons(%x, %rest) => {
      let %next = @cell(%x, %h, %wi, %wh);
      @main(%rest, %next, %wi, %wh)
    },
    Nil => %h,
  }
}""",
    "tree LSTM": """
type Tree { Leaf(Tensor[(1, 16), float32]), Node(Tree, Tree) }
def @lstm(%t: Tree, %w: Tensor[(16, 16), float32]) -> (Tensor[(1, 16), float32], Tensor[(1, 16), float32]) {
  match (%t) {
    Leaf(%x) => (sigmoid(%x), tanh(%x)),
    Node(%l, %r) => {
      %0 = @lstm(%l, %w);
      %1 = @lstm(%r, %w);
      let %h = nn.dense(%0.0 + %1.0, %w);
      let %c = sigmoid(%h) * (%0.1 + %1.1);
      (tanh(%c), %c)
    },
  }
}""",
    "while loop as a closure": """
def @main(%n: int32) -> int32 {
  let %while_loop = fn (%i: int32, %acc: int32) -> (int32, int32) {
    %0 = less(%i, %n);
    if (%0) {
      %1 = add(%i, 1);
      %2 = add(%acc, %i);
      %while_loop(%1, %2)
    } else {
      (%i, %acc)
    }
  };
  %3 = %while_loop(0, 0);
  %3.1
}""",
    "polymorphic map": """
def @map[A, B](%f: fn (A) -> B, %xs: List[A]) -> List[B] {
  match (%xs) {
    Cons(%x, %rest) => Cons(%f(%x), @map(%f, %rest)),
    Nil => Nil,
  }
}
def @main(%xs: List[int32]) { @map[int32, bool](fn (%x: int32) -> bool { %x > 3 }, %xs) }""",
    "angle brackets and bars": """
type Either<A, B> { | Left(A) | Right(B) }
def @swap<A, B>(%e: Either[A, B]) -> Either[B, A] {
  match (%e) { | Left(%a) -> Right(%a) | Right(%b) -> Left(%b) }
}""",
    "symbolic shapes": """
def @main[n: Dim(1, 512), m: Dim(2)](%x: Tensor[(n, 4*n + 1, n // 2, (n + 1) % 3), float32], %y: Tensor[(min(n, 8), max(m, n - 1)), int8],
                            %z: Tensor[(n*m*2, ?), bool]) -> Tensor[(n, 2*m), float32] {
  %x
}""",
    "shape and base type parameters": """
def @main[s: Shape, b: BaseType, n: Dim](%x: Tensor[s, b], %y: Tensor[(n,), b]) -> (Tensor[s, b], Tensor[(n), b]) { (%x, %y) }""",
    "relations": """
def @main[A, B, C](%x: A, %y: B) -> C where Broadcast(A, B, C), Dense(A, B, C, units=3) { add(%x, %y) }""",
    "polymorphic function types": """
def @main(%f: fn[A, n: Dim](Tensor[(n, 2), float32], A) -> A where Identity(A, A), %g: fn () -> (), %h: fn (fn (int32) -> bool) -> (int32,)) {
  %f
}""",
    "parameterised data": """
type Grid[s: Shape, b: BaseType, n: Dim] { Cell(Tensor[s, b]), Row(Tensor[(n,), b], Grid[s, b, n]), }
def @main(%g: Grid[(2, 3), float32, 4], %h: Grid[(), int8, 2]) { %g }""",
    "extern type": "extern type Storage\nextern type Handle[A]\ndef @main(%x: Storage, %h: Handle[int32]) { %x }",
    "empty type": "type Void { }\ndef @main(%v: Void) -> int32 { match (%v) { } }",
    "references": """
def @main(%x: float32, %cell: ref(float32), %other: Ref[Tensor[(2, ?), float32]]) -> float32 {
  let %r: ref(float32) = ref(%x);
  %r := !%r * 2f;
  %cell := !%r;
  ref_write(%r, 3f);
  ref_read(%r)
}""",
    "gradient": "def @main(%x: float32) { %0 = grad(fn (%y: float32) -> float32 { %y * %y }); %0(%x) }",
    "forward derivative": "def @main(%x: float32) { %0 = jvp(fn (%y: float32) -> float32 { %y * %y }); %0(%x, 1f) }",
    "nested patterns": """
def @main(%xs: List[(int32, Tensor[(2,), float32])]) {
  match? (%xs) {
    Cons((%a, _), Cons((_, %b: Tensor[(2,), float32]), Nil())) => (%a, %b),
    Cons((%a, %t), _) => (%a, %t),
  }
}""",
    "one-tuples and units": "def @main(%x: (int32,), %y: (), %z: ((),)) -> ((int32,), ()) { ((%x.0,), %y) }",
    "deep projection": "def @main(%x: ((int32, (bool, int8)), int32)) { (%x.0.1.1, %x.0.0, (%x.0).1) }",
    "names with dots and slashes": """
def @model/block.1(%input.1: Tensor[(1,), float32], %scope/w: float32, %x: (int32, int32), %x.0: float32) {
  (%input.1, %scope/w, %x.0, %x.1, (%x).0)
}""",
    "shadowing": """
def @main(%x: int32) {
  let %x = %x + 1;
  let %x = %x * 2;
  let %f = fn (%x: int32) { let %x = %x - 1; %x };
  if (%x > 3) { let %x = 7; %x } else { %f(%x) }
}""",
    "shared across branches": """
def @main(%c: bool, %x: Tensor[(4), float32]) {
  %0 = exp(%x);
  %1 = if (%c) { %2 = tanh(%0); add(%2, %2) } else { negative(%0) };
  %3 = fn (%y: Tensor[(4), float32]) { add(%y, %0) };
  (%1, %3(%1), %3)
}""",
    "blocks as operands": """
def @main(%x: int32) {
  let %y = { let %t = %x * 2; %t + 1 };
  add((let %u = 3; %u * %y), { %y; %x })
}""",
    "operators by precedence": """
def @main(%a: float32, %b: float32) {
  (%a + %b * 2f - %a / 3f < %b, -%a <= --%b, %a >= 1f, %a == %b, %a != %b, (%a - %b) - %a, %a - (%b - %a), 2f > -1f)
}""",
    "else if": "def @main(%x: int32) { if (%x < 0) { -1 } else if (%x == 0) { 0 } else { 1 } }",
    "literals": """
def @main() {
  (1, -1, 2i64, 3i8, 250u8, -7i16, 5i4, 1f, 2.5f, 1e-3f, 1e-05f, 3f16, 2.5f64, 0.5bf16, 1.5, True, False, 18446744073709551615u64, -0f,
   -inff, nanf64, where(True, inff16, 1f16))
}""",
    "tensor literals": """
def @main() {
  (const([1, 2, 3], (3,), int64), const(-inf, float32), const(nan, float16), const([True, False], (2, 1), bool),
   const([0.1, -2.5, inf, 1e10], (2, 2), float32), const([], (0, 3), float64), const([-8, 7], (2), int4),
   const([18446744073709551615, 0], (2,), uint64), const([3i64, -2i64, 1], (3,), int64))
}""",
    "attributes of all kinds": r"""
def @main(%x: Tensor[(2, 2), float32]) {
  f(%x, axis=None, newshape=[-1, 0], nested=[[0, 0], [1, -1]], eps=1e-12f, big=-inf, flag=True, one=1, name="a \"quoted\" \\ name\n",
    type=Tensor[(2, ?), int8], dtype=float32, kinds=[float32, List[int32]], fun=fn (int32) -> (), mode={"a": [1, {}], "b": "c"}, empty=[],
    size=Dim[3], unit=Tuple[], ref=1, meta=2, "odd key"=3,)
}""",
    "call of a call": "def @main(%f: fn (int32) -> fn (int32) -> int32) { %f(1)(2) }",
    "immediate application": "def @main(%x: int32) { (fn (%y) { %y })(%x) + fn (%z) { %z }(%x) }",
    "operators as values": "def @main(%xs: List[float32]) { @fold(add, multiply, Cons, %xs) }\ndef @fold(%f, %g, %h, %x) { %x }",
    "sequencing": "def @main(%r: Ref[int32]) { %r := 1; %r := 2; let %_ = !%r; (); !%r }",
    "used wildcard name": "def @main() { let %_ = 3; %_ + 1 }",
    "comments": """
/* a /* nested */ comment, with "quotes */
def @main(%x: int32 /* ty=int32 */, /* why */ %y: int32) { // to the end of the line
  %x /* span=a.onnx:3:4 */ + %y // %z
}""",
    "left to inference": "def @main(%x: _, %y: Tensor[(?n, 4, ?n), float32]) -> _ { let %z: (int32, _) = (1, %x); let %w: ?A = %z; (%w, %y) }",
    "lower-case constructors": "type box[t] { box_of(t), empty_box }\ndef @main(%b: box[bool]) { match (%b) { box_of(%x) => %x, empty_box => False } }",
    "devices": 'def @main(%x: Tensor[(2,), float32, "cuda:0"], %y: Tensor[(), int8, "cpu"]) { %x }',
    "vector lanes": "def @main(%x: Tensor[(2,), float32x4], %y: int8x16, %z: boolx4) { %x }",
    "mutual recursion": """
def @even(%n: int32) -> bool { if (%n == 0) { True } else { @odd(%n - 1) } }
def @odd(%n: int32) -> bool { if (%n == 0) { False } else { @even(%n - 1) } }""",
    "attention": """
def @main[n: Dim](%q: Tensor[(n, 64), float32], %k: Tensor[(n, 64), float32], %v: Tensor[(n, 64), float32]) -> Tensor[(n, 64), float32] {
  %0 = nn.batch_matmul(expand_dims(%q, axis=0), expand_dims(%k, axis=0), transpose_b=True);
  let %s = nn.softmax(%0 / 8f, axis=-1);
  squeeze(nn.batch_matmul(%s, expand_dims(%v, axis=0), transpose_b=False), axis=[0])
}""",
    "quantized": """
def @main(%x: Tensor[(1, 8), uint8], %w: Tensor[(4, 8), int8]) {
  %0 = qnn.dense(%x, %w, 128, 0, 0.05f, 0.02f, units=4, out_dtype="int32");
  qnn.requantize(%0, 0.001f, 0, 0.1f, 3, axis=1, rounding="UPWARD", out_dtype="uint8")
}""",
}  # fmt: skip

PROGRAMS: dict[str, str] = {
    name: HEADER + (LISTS if "List" in body or "Cons" in body else "") + body.strip() + "\n"
    for name, body in _BODIES.items()
}
