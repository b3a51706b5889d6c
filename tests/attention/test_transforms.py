"""What PyTorch does to modules: compile, export, autocast, cast, save, copy."""

import copy
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import heed
from heed.attention.catalogue import CATALOGUE
from heed.attention.read import Join
from tests.attention.cases import (
    ALONE,
    CASES,
    FIRST,
    Case,
    answers,
    close,
    every,
    main,
    same_record,
)

LENGTHS = torch.tensor([6, 0, 4])
LONG = [case for case in ALONE if len(case.words) > 2]
LEARNING = [Case(x) for x in ("scaled-dot", "additive", "coverage", "local-p", "argmax", "forward")]
COMPILED = [*LONG, *LEARNING, Case("scaled-dot", 4, 2)]
COMPILED += [  # and each other word, alone if no long name has it
    case
    for case in ALONE
    if len(case.words) == 1 and not any(case.words <= x.words for x in COMPILED)
]


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


class Asked(nn.Module):
    """A call as a graph sees it: tensors in, tensors out."""

    def __init__(self, case: Case, attend: Any) -> None:
        super().__init__()
        self.attend, self.first = attend, case.first

    def forward(self, q: Tensor, k: Tensor, v: Tensor, n: Tensor) -> dict[str, Tensor]:
        memory = self.attend.remember(k, v, heed.lengths(n))
        return dict(answers(self.attend(q, memory, self.first, need="weight")))


def same_numbers(case: Case, got: Any, want: Any, tolerance: float, slopes: bool) -> None:
    """Tolerances of outputs, and of gradients."""
    steps = 2 if len(case.words) == 1 else 1  # a past unrolls its steps
    tensors = case.inputs(T=min(case.T, steps), dtype=torch.float32, grad=slopes)
    results = []
    for module in (got, want):
        out = module(*tensors, LENGTHS)
        total = sum((x * torch.linspace(0, 1, x.numel()).view_as(x)).sum() for x in out.values())
        if slopes:
            grads = torch.autograd.grad(total, tensors, materialize_grads=True)
            out.update({f"gradient {i}": x for i, x in enumerate(grads)})
        results.append(out)
    compiled, eager = results
    assert compiled.keys() == eager.keys()
    for name, x in compiled.items():
        close(x, eager[name], 10 * tolerance if name.startswith("gradient") else tolerance)


@pytest.mark.usefixtures("fresh_dynamo")
@every(COMPILED)
def test_compiles_as_one_graph(case: Case) -> None:
    learns = case in LEARNING  # the backward graph doubles the time: one of each family
    asked = Asked(case, case.build(torch.float32).requires_grad_(learns))
    backend = "aot_eager" if learns else "eager"  # the operators of a graph are those of an export
    compiled = torch.compile(asked, backend=backend, fullgraph=True)
    same_numbers(case, compiled, asked, 1e-6, slopes=learns)


@torch.no_grad()
@pytest.mark.usefixtures("fresh_dynamo")
@every([Case("coverage/monotonic/additive"), Case("mixed"), Case("forced-forward", 4, 2)])
def test_a_compiled_step_passes_its_state_on(case: Case) -> None:
    attend = case.build(torch.float32)
    q, k, v = case.inputs(dtype=torch.float32)
    memory = attend.remember(k, v)
    step = torch.compile(attend, backend="aot_eager", fullgraph=True)
    state, eager = FIRST, FIRST
    for t in range(3):
        got, want = step(q[:, t : t + 1], memory, state), attend(q[:, t : t + 1], memory, eager)
        state, eager = got.state, want.state
        same_record(got, want, 1e-6)


@pytest.mark.usefixtures("fresh_dynamo")
@every([Case("additive"), Case("sparsemax"), Case("scaled-dot", 4, 2)])
def test_compiles_with_inductor(case: Case) -> None:
    learns = case.name == "additive"
    asked = Asked(case, case.build(torch.float32).requires_grad_(learns))
    same_numbers(case, torch.compile(asked, fullgraph=True), asked, 1e-5, slopes=learns)


@pytest.mark.usefixtures("fresh_dynamo")
def test_the_function_compiles() -> None:
    q, k = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 5, 8)

    def both(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        local = heed.attend(q, k, k, "local-m/dot")
        return local.context, heed.attend(q, k, k, visible=heed.causal()).context

    for x, y in zip(torch.compile(both, fullgraph=True)(q, k), both(q, k), strict=True):
        close(x, y, 1e-5)


@pytest.mark.parametrize("name", ["dot", "expanded-window", "local-m/dot"])
def test_the_function_compiles_for_unknown_lengths(name: str) -> None:
    torch._dynamo.reset()

    def look(q: Tensor, k: Tensor) -> Tensor:
        return heed.attend(q, k, k, name).context

    compiled = torch.compile(look, fullgraph=True, dynamic=True, backend="aot_eager")
    # Where T = S at first, a compiler takes them for one number and compiles again: once is enough.
    for T, S in ((17, 17 if name == "dot" else 19), (29, 40), (3, 5)):
        q, k = torch.randn(2, 4, T, 8), torch.randn(2, 4, S, 8)
        close(compiled(q, k), look(q, k), 1e-5)


def test_the_function_compiles_for_numbers_that_change() -> None:
    """A compiler takes them for any number, and a mechanism is built for one."""
    torch._dynamo.reset()

    def look(q: Tensor, scale: float, window: int, dropout: float = 0.0) -> Tensor:
        told: dict[str, Any] = {"scale": scale, "window": window, "dropout": dropout}
        return heed.attend(q, q, q, "fixed-window/scaled-dot", **told).context

    compiled = torch.compile(look, fullgraph=True, dynamic=True, backend="eager")
    q = torch.randn(2, 4, 9, 8)
    for told in ((0.3, 2), (0.5, 3), (1.0, 3, 0.25)):
        torch.manual_seed(0)
        got = compiled(q, *told)
        torch.manual_seed(0)
        close(got, look(q, *told), 1e-5)  # type: ignore[arg-type]


FRESH = """
import torch
import heed

def look(q, k, v):
    return [heed.attend(q, k, v, name).context for name in names]

for names in (["scaled-dot"], ["local-m"], ["sparsemax", "fixed-window/entmax"]):
    torch._dynamo.reset()
    compiled = torch.compile(look, fullgraph=True, backend="eager")
    for width in (8, 6, 4):  # from the second on, a compiler takes it for any number
        q, k, v = (torch.randn(2, 3, T, width) for T in (5, 7, 7))
        found = compiled(q, k, v)
        for x, y in zip(found, look(q, k, v), strict=True):
            torch.testing.assert_close(x, y)
names = ["additive"]
torch._dynamo.reset()
try:
    torch.compile(look, fullgraph=True, backend="eager")(q, k, v)
except Exception as refused:
    print(refused)
"""


def test_the_function_compiles_before_its_first_call() -> None:
    done = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "'additive' has weights to learn: build it once, heed.Attention(" in done.stdout


@every(
    [Case(x) for x in ("dot", "additive", "local-p/general", "forward/additive", "static")]
    + [Case("pointer/additive"), Case("scaled-dot", 4, 2), Case("coverage/entmax", 4, 2)]
)
def test_exports(case: Case) -> None:
    asked = Asked(case, case.build(torch.float32).eval())
    q, k, v = case.inputs(dtype=torch.float32)
    program = torch.export.export(asked, (q, k, v, LENGTHS))
    q, k, v = case.inputs(dtype=torch.float32)
    want = asked(q, k, v, LENGTHS)
    for name, x in program.module()(q, k, v, LENGTHS).items():
        close(x, want[name], 1e-6)


def unrolls(case: Case) -> bool:
    """Whether a graph holds each step of the call, so that T is fixed."""
    return bool(case.words & {"coverage", "location-aware"}) or not case.claims.takes_several


class Answers(Asked):
    """The context alone, or the weights where there is none or they are wanted."""

    def __init__(self, case: Case, visible: Any, need: Any) -> None:
        super().__init__(case, case.build(torch.float32, **LONGER.get(case.name, {})).eval())
        self.visible, self.need = visible, need

    def forward(self, q: Tensor, k: Tensor, v: Tensor, n: Tensor) -> Tensor:  # type: ignore[override]
        memory = self.attend.remember(k, v, heed.lengths(n))
        seen = self.attend(q, memory, self.first, visible=self.visible, need=self.need)
        return seen.weight if self.need == "weight" else main(seen)


LONGER = {"location": {"longest": 80}, "relative": {"width": 8}}
NAMED = [case for case in ALONE if case.name in CATALOGUE or case.name == "local-p/general"]
OPEN = (
    [(case, None, "context") for case in [*NAMED, Case("scaled-dot", 4, 2), Case("additive", 4, 2)]]
    + [(Case(x), None, "weight") for x in ("relative", "expanded-window", "local-p/general")]
    + [(Case(x), heed.causal(), "context") for x in ("dot", "relative", "fixed-window")]
)


@pytest.mark.parametrize(("case", "visible", "need"), OPEN, ids=str)
def test_exports_for_open_lengths(case: Case, visible: Any, need: Any) -> None:
    """One graph: T beyond the width of `relative`, S within one block and many, and T = S."""
    asked = Answers(case, visible, need)
    T, S = (torch.export.Dim(name, min=2, max=80) for name in "TS")
    sizes = ({} if unrolls(case) else {1: T}, {1: S}, {1: S}, {})

    def given(T: int, S: int) -> tuple[Tensor, ...]:
        T = case.T if unrolls(case) else T
        return *case.inputs(B=2, T=T, S=S, dtype=torch.float32), torch.tensor([S, S // 2])

    graph = torch.export.export(asked, given(7, 11), dynamic_shapes=sizes).module()
    for inputs in (given(3, 9), given(20, 5), given(5, 75), given(70, 70), given(2, 2)):
        close(graph(*inputs), asked(*inputs), 1e-5)


# torch warns of its own names when it decomposes a graph.
@pytest.mark.filterwarnings("ignore:`isinstance:FutureWarning")
@every(
    [Case(x) for x in ("additive", "entmax/additive", "local-m/additive", "monotonic/additive")]
    + [Case(x) for x in ("local-p/general", "expanded-window", "forward", "mixture-window")]
    + [Case("concat", 4, 2)]
)
def test_a_graph_for_onnx_has_no_operator_of_heed(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    asked = Answers(case, None, "context")
    inputs = (*case.inputs(B=2, S=75, dtype=torch.float32), torch.tensor([75, 40]))
    program = torch.export.export(asked, inputs).run_decompositions()
    assert not [x for x in program.graph.nodes if "heed" in str(x.target)]
    close(program.module()(*inputs), asked(*inputs), 1e-5)


class Read(nn.Module):
    """A call that asks for the context only, which a kernel may serve."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.attend, self.first = case.build(torch.float32).eval().requires_grad_(False), case.first

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        memory = self.attend.remember(k, v)
        context: Tensor = self.attend(q, memory, self.first).context
        return context


SERVED = [Case(x) for x in ("dot", "general", "local-p", "expanded-window", "forward")] + [
    Case(x) for x in ("additive", "concat-identity", "local-m/additive", "monotonic/additive")
]


def traced(read: Read, inputs: tuple[Tensor, ...]) -> Any:
    with warnings.catch_warnings():  # of sizes made constants, and of traces being old
        warnings.simplefilter("ignore")
        return torch.jit.trace(read, inputs, check_trace=False)


@every(SERVED)
@pytest.mark.parametrize("record", [traced, lambda read, inputs: make_fx(read)(*inputs)])
def test_a_trace_records_all_of_a_call(
    case: Case, record: Callable[[Read, tuple[Tensor, ...]], Any]
) -> None:
    """A trace would not record what C writes, and would read uninitialised memory."""
    read, inputs = Read(case), case.inputs(dtype=torch.float32)
    graph = record(read, inputs)
    inputs = case.inputs(dtype=torch.float32)
    close(graph(*inputs), read(*inputs), 1e-6)


@every(SERVED)
def test_shapes_are_computed_on_meta(case: Case) -> None:
    read, inputs = Read(case), case.inputs(dtype=torch.float32)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        told = read(*(mode.from_tensor(x) for x in inputs))
    assert told.shape == read(*inputs).shape


# torch warns of its own rules when forward mode is loaded.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@every([*SERVED, Case("scaled-dot", 4, 2), Case("mixed"), Case("fixed-window")])
def test_forward_mode_is_the_transpose_of_backward_mode(case: Case) -> None:
    """w·(J t) = (Jᵀ w)·t: kernels without forward mode step aside."""
    read, inputs = Read(case).double(), case.inputs()
    along = tuple(torch.randn_like(x) for x in inputs)
    context, moved = torch.func.jvp(read, inputs, along)
    by = torch.randn_like(context)
    _, back = torch.func.vjp(read, *inputs)
    want = sum((grad * x).sum() for grad, x in zip(back(by), along, strict=True))
    close((moved * by).sum(), want, 1e-9)


@every(CASES)
def test_autocast_keeps_energies_and_weights_in_full_precision(case: Case) -> None:
    attend = case.build(torch.float32)
    q, k, v = case.inputs(dtype=torch.float32, grad=True)
    need = "weight" if "mixed" in case.words else "energy"  # two energies: it reports none
    with torch.autocast("cpu", torch.bfloat16):
        memory = attend.remember(k, v, heed.lengths(LENGTHS))
        seen = attend(q, memory, case.first, need=need)
        plain = attend(q, memory, case.first)
        main(plain).float().sum().backward()
    assert all(x.dtype == torch.float32 for name, x in answers(seen) if name != "context")
    assert not seen.weight[1].any()
    if case.claims.gives_context:
        assert plain.context.dtype == seen.context.dtype == torch.bfloat16
        close(plain.context.float(), seen.context.float(), 0.05)
    assert q.grad is None or q.grad.isfinite().all()
    exact = attend(q, attend.remember(k, v, heed.lengths(LENGTHS)), case.first, need="weight")
    if case.claims.is_differentiable and not case.words & {"monotonic", "local-p", "local-m"}:
        close(seen.weight, exact.weight, 0.1)


@every(CASES)
def test_float16_works_where_autocast_computes_in_bfloat16(case: Case) -> None:
    """As PyTorch's fused attention does; its `cat` refuses such tensors."""
    attend = case.build(torch.float32, **({"longest": 12} if "location" in case.words else {}))
    inputs = case.inputs(dtype=torch.float32)
    exact = attend(inputs[0], attend.remember(*inputs[1:], heed.lengths(LENGTHS)), case.first)
    attend, (q, k, v) = attend.to(torch.float16), (x.half() for x in inputs)
    with torch.autocast("cpu", torch.bfloat16):
        memory = attend.remember(k, v, heed.lengths(LENGTHS))
        seen = attend(q, memory, case.first)
        longer = attend(q, memory.extend(k, v, heed.lengths([0] * len(k))), case.first)
    assert main(longer).isfinite().all()
    if case.claims.gives_context:
        assert seen.context.dtype == torch.bfloat16
    if case.claims.is_differentiable and not case.words & {"monotonic", "local-p", "local-m"}:
        close(main(seen).float(), main(exact), 0.1)


def test_the_output_stage_takes_two_half_precisions() -> None:
    join = Join(context=3, query=4, width=5)
    context, query = torch.randn(2, 1, 3), torch.randn(2, 1, 4)
    with torch.autocast("cpu", torch.bfloat16):
        joined = join(context.bfloat16(), query.half())
    close(joined.float(), join(context, query), 0.05)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every(CASES)
def test_half_precision_modules(case: Case, dtype: torch.dtype) -> None:
    attend = case.build().to(dtype)
    q, k, v = case.inputs(dtype=dtype)
    memory = attend.remember(k, v, heed.lengths(LENGTHS))
    seen = attend(q, memory, case.first, need="weight")
    assert seen.weight.dtype == torch.float32
    assert main(seen).isfinite().all()
    if case.claims.gives_context:
        assert attend(q, memory, case.first).context.dtype == seen.context.dtype == dtype
        close(attend(q, memory, case.first).context.float(), seen.context.float(), 0.05)


@every(CASES)
def test_a_state_dict_can_be_saved_and_loaded(case: Case, tmp_path: Path) -> None:
    attend, other = case.build(), case.build()
    q, k, v = case.inputs()
    want = attend(q, attend.remember(k, v), case.first, need="weight")
    save_file(attend.state_dict(), tmp_path / "model.safetensors")
    for state in (attend.state_dict(), load_file(tmp_path / "model.safetensors")):
        made = copy.deepcopy(other)
        made.load_state_dict(state, strict=True)
        same_record(made(q, made.remember(k, v), case.first, need="weight"), want, 0)
    twin = copy.deepcopy(attend)
    same_record(twin(q, twin.remember(k, v), case.first, need="weight"), want, 0)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.fill_(0.1)
    same_record(attend(q, attend.remember(k, v), case.first, need="weight"), want, 0)


@torch.no_grad()
@every(CASES, has_steps=True)
def test_a_state_can_be_copied(case: Case) -> None:
    attend = case.build()
    q, k, v = case.inputs()
    memory = attend.remember(k, v)
    state = attend(q[:, :1], memory, copy.deepcopy(FIRST)).state
    want = attend(q[:, 1:2], memory, state, need="weight")
    same_record(attend(q[:, 1:2], memory, copy.deepcopy(state), need="weight"), want, 0)
    same_record(attend(q[:, 1:2], memory, state, need="weight"), want, 0)  # no state remains


@pytest.mark.usefixtures("deterministic")
@every(CASES)
def test_is_deterministic(case: Case) -> None:
    attend = case.build(torch.float32)
    q, k, v = case.inputs(dtype=torch.float32, grad=True)
    runs = []
    for _ in range(2):
        seen = attend(q, attend.remember(k, v, heed.lengths(LENGTHS)), case.first)
        of = [q, k, v, *attend.parameters()]
        out = main(seen)
        grads = (
            torch.autograd.grad(out.sum(), of, materialize_grads=True) if out.requires_grad else ()
        )
        runs.append([out, *grads])
    assert all(torch.equal(x, y) for x, y in zip(*runs, strict=True))
