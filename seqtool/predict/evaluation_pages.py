"""The reports of `eval report=FILE`: the results for people who would rather look than read, in one HTML file."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from seqtool.metrics.bootstrap import FEW, few
from seqtool.metrics.scores import score
from seqtool.metrics.systems import Comparison, System
from seqtool.metrics.words import f1_by_count, unit_of
from seqtool.predict.caption_details import chosen
from seqtool.predict.flags import EXPLAINED, flags_of
from seqtool.view import report
from seqtool.view.packing import Details
from seqtool.view.report import Section, rounded

if TYPE_CHECKING:
    from seqtool.predict.caption_report import CaptionReport
    from seqtool.predict.text_evaluation import TextReport
    from seqtool.predict.translation_report import TranslationReport

ORIGIN = "Origin"


def origin(made: Mapping[str, Any]) -> Section:
    """Checkpoints and decoding settings, if there are any, and the files, by setting."""
    rows = dict(made["files"])
    if "checkpoints" in made:
        settings = " ".join(f"{name}={str(value).lower()}" for name, value in made["decoding"].items())
        rows = {"checkpoints": ", ".join(made["checkpoints"]), "decoding": settings, **rows}
    return report.facts(ORIGIN, rows)


def scores_of(systems: Mapping[str, System]) -> Section:
    """Every score of every system with its interval, and how far the first is ahead of the others."""
    (first, system), *others = systems.items()
    columns = ["score", first]
    comparisons = [Comparison.of(other, system) for _, other in others]
    for name, _ in others:
        columns += [name, "difference", "p"]
    rows = []
    for number, (name, estimate) in enumerate(system.estimates.items()):
        digits = score(name).digits
        row = [score(name).heading, estimate.text(digits)]
        for comparison in comparisons:
            one = comparison.differences[number]
            ahead = f"{one.system.value - one.baseline.value:+.{digits}f}"
            row += [one.baseline.text(digits), ahead, one.p]
        rows.append([*row, system.signature(name)])
    note = "95 % intervals by bootstrap over segments." if system.samples else "Without intervals: bootstrap=0."
    if 0 < len(system.hypotheses) < FEW and system.samples:
        note += f" {few(len(system.hypotheses), 'segments')}"
    if others and system.samples:
        note += f" Each difference is “{first}” minus the system on its left, p by paired bootstrap on equal resamples."
    return report.table("Scores", [*columns, "signature"], rows, note)


def of_translations(found: "TranslationReport", made: Mapping[str, Any]) -> dict[str, Any]:
    """The page on translations."""
    systems = found.systems
    counted = _by_count(systems, found.references, found.counts)
    sections: list[Section | None] = [origin(made), scores_of(systems), _by_length(found), counted]
    if found.alignment is not None:
        sections.append(report.table("Alignments", ("alignment", "error rate"), found.alignment.rows()))
        if notes := found.alignment.notes():
            sections.append({"kind": "text", "title": "Swapped neighbours", "lines": notes})
    sections.append(_sentences(found))
    title = f"Translations of {next(iter(systems))}"
    return report.page(title, f"{len(found.names):,} sentences", sections)


def _by_length(found: "TranslationReport") -> Section | None:
    if found.sources is None:
        return None
    lengths = {name: found.lengths_of(system) for name, system in found.systems.items()}
    bins = [f"{one.label} ({one.sentences:,})" for one in found.by_length]
    series = {name: [one.bleu for one in some] for name, some in lengths.items()}
    return report.intervals("BLEU by source length", f"source {found.unit} (sentences)", "BLEU", bins, series)


def _by_count(
    systems: Mapping[str, System], references: Sequence[Sequence[str]], counts: Mapping[str, int] | None
) -> Section | None:
    if counts is None:
        return None
    counted = {
        name: f1_by_count(system.hypotheses, references, counts, samples=system.samples)
        for name, system in systems.items()
    }
    bins = [f"{one.label} ({one.words:,})" for one in next(iter(counted.values()))]
    series = {name: [one.f1 for one in some] for name, some in counted.items()}
    unit = unit_of(references)
    title, x = f"F1 of {unit} by their count in training", f"times in training ({unit} of the references)"
    return report.intervals(title, x, "F1, %", bins, series)


def _sentences(found: "TranslationReport") -> Section:
    if found.shown is not None:
        flags = found.shown.flags
    else:
        sources: Sequence[str | None] = found.sources or [None] * len(found.names)
        flags = [flags_of(text, source=source) for text, source in zip(found.system.hypotheses, sources, strict=True)]
    details = None if found.shown is None else found.shown.packed
    return sentences("Sentences", found.systems, found.references, flags, details, sources=found.sources)


def sentences(
    title: str,
    systems: Mapping[str, System],
    references: Sequence[Sequence[str]],
    flags: Sequence[Sequence[str]],
    details: Details | None,
    *,
    sources: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
) -> Section:
    """The table of all sentences. sources, names: of the segments, if they have any; details: of rows that open."""
    labels, values = scores_by_segment(list(systems.values()))
    explained = "; ".join(f"{flag}: {meaning}" for flag, meaning in EXPLAINED.items())
    notes = [f"Flags. {explained}."] if any(flags) else []
    if len(systems) > 1:
        first = next(iter(systems))
        notes.append(f"Beside “{first}”: words that it lacks are marked, words that only it has are struck out.")
    return {
        "kind": "sentences",
        "title": title,
        "note": " ".join(notes) or None,
        "systems": list(systems),
        "scores": labels,
        "sources": None if sources is None else list(sources),
        "names": None if names is None else list(names),
        "references": [list(some) for some in references],
        "hypotheses": [list(system.hypotheses) for system in systems.values()],
        "values": values,
        "flags": [list(some) for some in flags],
        "details": None if details is None else details.described(),
    }


def of_captions(found: "CaptionReport", made: Mapping[str, Any]) -> dict[str, Any]:
    """The page on captions."""
    systems = found.systems
    likelihood = found.likelihood
    sections: list[Section | None] = [origin(made), scores_of(systems), _other_scores(found)]
    if likelihood is not None:
        sections.append({"kind": "text", "title": "Likelihood of the references", "lines": likelihood.lines()})
    sections.append(_by_count(systems, found.references, found.counts))
    sections.append(_pictures(found))
    own = found.shown[0]
    flags = own.flags or [flags_of(text) for text in found.system.hypotheses]
    names = [str(name) for name in found.names]
    sections.append(sentences("Captions", systems, found.references, flags, own.packed, names=names))
    return report.page(f"Captions of {next(iter(systems))}", f"{len(found.names):,} images", sections)


def _other_scores(found: "CaptionReport") -> Section:
    rows = {score(name).heading: f"{value:.4f}" for name, value in found.java.items()}
    rows |= {f"{score(name).heading} of {found.titles[1]}": f"{one:.4f}" for name, one in found.baseline_java.items()}
    rows |= {name.replace("_", " "): f"{value:.4f}" for name, value in found.lengths.items()}
    return report.facts("Lengths and further scores", rows)


def _pictures(found: "CaptionReport") -> Section:
    """The pictures with each system's caption; those of which there is no picture are left out."""
    labels, values = scores_by_segment(list(found.systems.values()))
    names = [str(name) for name in found.names]
    with_picture = [i for i, name in enumerate(names) if any(name in one.pictures for one in found.shown)]
    place = next((j for j, name in enumerate(found.system.values) if name == "cider_d"), 0)
    orders = chosen([values[0][place][i] for i in with_picture], len(with_picture))
    kept = [with_picture[i] for i in orders["all"]]
    cards = []
    for i in kept:
        captions = []
        for system, details in zip(found.systems.values(), found.shown, strict=True):
            text = system.hypotheses[i]
            captions.append(details.captions.get(names[i]) or {"text": text, "words": text.split()})
        cards.append(
            {
                "name": names[i],
                "picture": next(one.pictures[names[i]] for one in found.shown if names[i] in one.pictures),
                "captions": captions,
                "references": list(found.references[i]),
                "values": [[column[i] for column in some] for some in values],
            }
        )
    numbers = {number: card for card, number in enumerate(orders["all"])}
    shown = {name: [numbers[i] for i in order] for name, order in orders.items()}
    by = labels[place]["label"]
    note = f"{len(cards):,} of {len(names):,} images: the best and the worst by {by}, and others at random."
    described = {"kind": "pictures", "title": "Pictures", "note": note, "systems": list(found.systems)}
    return {**described, "pictures": cards, "orders": shown, "scores": labels}


def of_text(found: "TextReport", made: Mapping[str, Any], details: Details) -> dict[str, Any]:
    """The page on a text that a language model read."""
    record = found.record()
    bits = found.bits.text(4)
    rows = {name: f"{record[name]:,}" for name in ("tokens", "characters", "unknown")}
    rows |= {"nats a token": f"{record['loss']:.4f}", "perplexity": f"{record['perplexity']:.2f}"}
    rows |= {"nats a character": f"{record['nats_per_character']:.4f}", "bits a character": bits}
    each = [rounded(float(nats) / max(1, int(tokens))) for nats, tokens in zip(found.nats, found.tokens, strict=True)]
    lines: Section = {
        "kind": "sentences",
        "title": "Lines",
        "systems": ["text"],
        "scores": [{"label": "nats a token", "digits": 3}],
        "sources": None,
        "names": None,
        "references": [[] for _ in found.lines],
        "hypotheses": [[line.rstrip("\n") for line in found.lines]],
        "values": [[each]],
        "flags": [[] for _ in found.lines],
        "details": details.described(),
    }
    return report.page(
        f"{found.name}, read by a language model",
        f"{bits} bits a character",
        [origin(made), report.facts("Text", rows | ({"interval": found.note} if found.note else {})), lines],
    )


def scores_by_segment(systems: Sequence[System]) -> tuple[list[dict[str, Any]], list[list[list[float | None]]]]:
    """What the scores of single segments are called, and for each system and score those of all segments."""
    each = [system.each() for system in systems]
    known = [score(name) for name in systems[0].values]
    headings = [{"label": one.heading, "digits": min(one.digits, 3)} for one in known]
    return headings, [[[rounded(one["scores"].get(kind.label)) for one in some] for kind in known] for some in each]
