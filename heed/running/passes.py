"""One pass: an input is answered once, and what every attention did meanwhile is kept.

(found,) = passes(worker, task_input)
found.look     for the terminal, a page, a picture: heed.viewing.looking.Look
found.calls    for the walk of a query: heed.watching.walk.follow
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from heed.answers.form import Lead, Words
from heed.answers.worker import Worker
from heed.records import Attended
from heed.viewing.atlas import Take
from heed.viewing.looking import Look
from heed.viewing.taking import layers, summary
from heed.watching.walk import Asked, Walk, follow, listen
from heed.watching.watch import attentions, watch

LIMIT = 2**32
"""How many bytes of maps are kept. However long an input is, its maps have the same size."""
WHOLE = "the text"
"""The name of a query that no word asks: one for the whole input."""
NONE = "this model has no attention to walk through"


@dataclass(frozen=True, slots=True)
class Pass:
    """An input, its answer, and every attention that can be looked at or walked through.

    calls   by path, the lowest layer first
    chosen  which of them is the most telling, as a place in that order
    first   the query that is walked with by default
    """

    look: Look
    calls: Mapping[str, Sequence[Asked]]
    named: Callable[[str], Words]
    chosen: int = -1
    first: int = 0
    missing: str = NONE  # why there is nothing to walk through, if there is nothing

    def walk(self, path: str, position: int, head: int) -> Walk:
        """The walk of one query of one head."""
        return follow(self.calls[path], position=position, head=head)

    def words(self, path: str) -> Sequence[str]:
        """The words that ask an attention; a static one is asked once, for the whole input."""
        count = sum(call.query.shape[2] for call in self.calls[path])
        queries, _ = self.named(path)
        return queries[:count] if count > 1 or len(queries) == 1 else [WHOLE]

    def asked(self, path: str) -> Sequence[str]:
        """The words that are asked."""
        queries, keys = self.named(path)
        return queries if keys is None else keys


def one_pass(
    worker: Worker,
    item: tuple[Any, ...],
    *,
    gold: Any = None,
    choice: Any = None,
    best: int = 1,
    answers: Sequence[Any] = (),
    given: Sequence[Any] = (),
) -> Pass:
    """Answer an input once, and keep what every attention did.

    gold     the right answer, where it is known
    best     how many answers are read again, where several can be explored
    answers  the model's own, where they are known
    given    another model's answers, which are read instead of the model's own
    """
    form, model = worker.form, worker.model
    seen: list[tuple[Any, dict[str, Attended], dict[str, list[Asked]]]] = []
    if form.rereads:
        answers = answers or worker.answers([item], choice, best)[0]
        read = [form.borrowed(worker, each) for each in given] or answers
        for each in read if not worker.is_blank(item) else ():
            with _watched(model, form.stream) as kept, torch.inference_mode():
                model.eval()
                form.reread(worker, item, each)
            seen.append((each, *kept))
    else:
        with _watched(model, form.stream) as kept:
            answers = form.once(worker, item, answers)
        seen = [(answers[0], *kept)] if not worker.is_blank(item) else []
    every = [
        _layers(worker, item, each, records, n if len(seen) > 1 else 0)
        for n, (each, records, _) in enumerate(seen, 1)
    ]
    look = _look(worker, item, answers, gold, [one for one in every if one is not None])
    calls = seen[0][2] if seen else {}
    told = form.words(worker, item, seen[0][0]) if seen else lambda path: ((), None)
    first = form.first(worker, seen[0][0]) if seen else 0
    paths, chosen = form.walked(worker, [path for path, some in calls.items() if some])
    return Pass(look, {path: calls[path] for path in paths}, told, chosen, first)


@contextmanager
def _watched(
    model: Any, stream: int
) -> Iterator[tuple[dict[str, Attended], dict[str, list[Asked]]]]:
    """Keep what every attention sees of a pass, and its calls; a recurrent decoder's steps are
    joined, and of two streams (XLNet) each asks in every layer: one of them is kept."""
    records: dict[str, Attended] = {}
    calls: dict[str, list[Asked]] = {}
    count = len(attentions(model))
    if not count:
        yield records, calls
        return
    with watch(model, statistics=summary(count), limit=LIMIT) as seen, listen(model) as heard:
        yield records, calls
    calls |= heard
    for path, some in seen.items():
        if len(some):
            two = hasattr(model, "streams") and len(some) > 1
            records[path] = some[stream] if two else Attended.join(list(some))


@dataclass(frozen=True, slots=True)
class _Seen:
    """The maps of one answer: as a page takes them, and what of them is drawn first."""

    take: Take
    lead: Lead


def _layers(
    worker: Worker, item: tuple[Any, ...], answer: Any, records: Mapping[str, Attended], n: int
) -> _Seen | None:
    """The maps of every attention; `n` numbers one of several answers. None without any."""
    form = worker.form
    kinds = {path: kind for path in records if (kind := form.kind(path)) is not None}
    found = layers(records, form.words(worker, item, answer), kinds=kinds)
    if not found:
        return None
    lead = form.lead(worker, answer, found)
    opens = None if lead.opens is None else list(found).index(lead.opens)
    score = getattr(answer, "log_prob", None) if form.rereads else None
    name = f"{n} · {answer.text}" if n else ""
    take = Take(name, list(found.values()), score=score, written=form.rereads, opens=opens)
    return _Seen(take, lead)


def _look(
    worker: Worker,
    item: tuple[Any, ...],
    answers: Sequence[Any],
    gold: Any,
    every: Sequence[_Seen],
) -> Look:
    """An input, its answers, and the maps."""
    best, form = answers[0], worker.form
    facts, told = best.facts(gold)
    lead = every[0].lead if every else Lead()
    return Look(
        best.source,
        best.text,
        [each.take for each in every],
        facts=facts,
        answer=told,
        weighed=lead.weighed,
        leading=lead.panels,
        remark=best.remark,
        readings=answers if form.rereads else (),
        named=form.named,
    )
