"""heed's attention against plain PyTorch, torch.compile, FlexAttention and SDPA.

    python benchmarks/attention.py [--device cuda] [--only SECTION] [--write] [--save FILE]

Every case is first checked against float64, by contract 5 of heed: a wrong result is not timed, and
the command reports it and fails. Then it measures the time of a call, forward and forward with
backward, the ratio to each rival, the peak memory, and the share of the machine's limit. Rivals are
used at their best: compiled for the exact shape and warmed up, with a block mask made once if
possible (otherwise its time is shown), and with every back end of SDPA.

--write puts tables and pictures into docs/performance.md. To measure on one machine and write on
another: --save FILE there, --load FILE --write here.
"""

import argparse
import gc
import json
import os
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from _attention import additive, dot, inside, local, starting, walks
from _attention.cases import OURS, Row, Wrong, compiling, measure, warm
from _attention.measuring import limits
from _attention.table import HEADINGS, Report, printed, write

SECTIONS = {"additive": additive, "local": local, "dot": dot, "inside": inside, "walks": walks}
COMPILING = ("additive", "local", "dot")  # sections with rivals that must be compiled
AHEAD = 60.0  # seconds for compiling them before anything is measured
WORKERS = min(16, os.cpu_count() or 1)  # processes that compile rivals before anything is timed


def rows(section: str, args: argparse.Namespace) -> Iterator[Row]:
    """The figures of a section, case by case."""
    for case in SECTIONS[section].cases(args.device, args.tiny) if section in SECTIONS else ():
        torch.manual_seed(0)
        begin = time.perf_counter()
        yield from told(section, case.name, measure(section, case, args.device, args.budget))
        print(f"{time.perf_counter() - begin:5.1f} s  {section}, {case.name}", file=sys.stderr)
        torch.compiler.reset()  # it keeps the tensors of a case
        gc.collect()
        if args.device == "cuda":
            torch.cuda.empty_cache()
    if section == "dot" and not args.tiny:
        yield from told(section, "short calls", dot.small_calls(args.device))
    if section == "starting":
        yield from told(section, "the first call", starting.rows(args.device))


def told(section: str, case: str, found: Iterator[Row]) -> Iterator[Row]:
    """The figures of a case; if heed is wrong or fails, a row that says so."""
    try:
        yield from found
    except (Exception, SystemExit) as error:
        what = "wrong" if isinstance(error, Wrong) else "failed"
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        print(f"{section}, {case}: {said}", file=sys.stderr, flush=True)
        yield Row(section, case, "", "", "", {}, failed={OURS: what})


def report(args: argparse.Namespace) -> Report:
    """Measure every section, printing each as it is done."""
    found = Report(args.device, machine(args.device))
    if args.device == "cuda" and not args.tiny and set(args.only or SECTIONS) & set(COMPILING):
        compile_ahead(args)
    for section in args.only or HEADINGS:
        begin = time.perf_counter()
        some = list(rows(section, args))
        notes = getattr(SECTIONS.get(section), "notes", lambda _: [])(some)
        print(f"\n{HEADINGS[section]}    [{time.perf_counter() - begin:.0f} s]\n{printed(some)}")
        print(*notes, sep="\n", end="\n" if notes else "", flush=True)
        found.rows += some
        found.notes[section] = notes
        if args.save:  # after each section, in case a later one fails
            args.save.write_text(json.dumps(found.saved(), indent=1))
    return found


def compile_ahead(args: argparse.Namespace) -> None:
    """Compile the rivals in several processes at once; the results are cached on disk."""
    command = [sys.executable, __file__, "--device", args.device]
    command += [x for section in args.only or [] for x in ("--only", section)]
    alone = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    begin = time.perf_counter()
    started = [
        subprocess.Popen([*command, "--worker", str(n)], env=alone, stderr=subprocess.DEVNULL)
        for n in range(WORKERS)
    ]
    for each in started:  # the rest is compiled when its turn comes
        try:
            each.wait(max(0.0, begin + AHEAD - time.perf_counter()))
        except subprocess.TimeoutExpired:
            each.kill()
    print(f"rivals compiled in {time.perf_counter() - begin:.0f} s", flush=True)


def work(args: argparse.Namespace) -> None:
    """Compile this worker's share of all rivals."""
    sections = [SECTIONS[name] for name in COMPILING if name in (args.only or SECTIONS)]
    cases = [case for each in sections for case in each.cases(args.device, args.tiny)]
    jobs = [job for case in cases for job in compiling(case)]
    for job in jobs[args.worker :: WORKERS]:
        warm(job, args.device)
        torch.cuda.empty_cache()


def machine(device: str) -> str:
    """A description of this machine."""
    name = platform.processor() or platform.machine()
    if device == "cuda":
        name = torch.cuda.get_device_name()
    elif os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as told:
            lines = [line for line in told if line.startswith("model name")]
        name = lines[0].partition(":")[2].strip() if lines else name
        name += f", {torch.get_num_threads()} threads"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    most, version = limits(device, dtype), torch.__version__.partition("+")[0]
    return (
        f"{name}, PyTorch {version}: {most.products / 1e12:.3g} TFLOP/s "
        f"in matrix products ({str(dtype).removeprefix('torch.')}), {most.bytes / 1e9:.0f} GB/s "
        f"copying, {most.tanhs / 1e12:.3g} T special functions/s"
    )


def main() -> None:
    """Measure and print; write where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", action="append", choices=list(HEADINGS))
    parser.add_argument("--budget", type=float, default=0.25, help="seconds for each figure")
    parser.add_argument("--tiny", action="store_true", help="sizes that only try the command out")
    parser.add_argument("--write", action="store_true", help="into docs/performance.md")
    parser.add_argument("--save", type=Path, help="the figures, as JSON")
    parser.add_argument("--load", type=Path, help="figures saved before; nothing is measured")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    warnings.filterwarnings("ignore", category=UserWarning)  # of rivals
    if args.worker is not None:
        return work(args)
    found = Report.of(json.loads(args.load.read_text())) if args.load else report(args)
    if args.write:
        write(found)
    red = [row.case for row in found.rows if row.failed.get(OURS) in ("wrong", "failed")]
    if red:
        sys.exit(f"heed was wrong or failed, so no speed is reported, in: {'; '.join(red)}")
    return None


if __name__ == "__main__":
    main()
