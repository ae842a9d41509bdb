"""How good word alignments are, against gold alignments of sure and possible links."""

from collections.abc import Sequence

from seqtool.data.alignment import Link

Gold = tuple[set[Link], set[Link]]  # sure links, possible links


def alignment_error_rate(hypotheses: Sequence[set[Link]], golds: Sequence[Gold]) -> float:
    """1 − (|A∩S| + |A∩P|) / (|A| + |S|) over a corpus, 0 is perfect (Och and Ney 2003).

    A gold alignment is (sure links S, possible links); a sure link is possible as well: P includes S.
    """
    agreed = total = 0
    for links, (sure, possible) in zip(hypotheses, golds, strict=True):
        agreed += len(links & sure) + len(links & (sure | possible))
        total += len(links) + len(sure)
    return 1 - agreed / total if total else 0.0


def crossings(hypotheses: Sequence[set[Link]], golds: Sequence[Gold], *, agreeing: bool = False) -> tuple[int, int]:
    """How many of the gold alignments' swaps the hypotheses' links cross as well, and of how many swaps.

    A swap is a pair of target words j, j+1 whose sure links go to i+1, i ("big cat", "gato grande"). With `agreeing`
    only those count whose second word has the first one's source as a possible link: an adjective after its noun.
    """
    crossed = swaps = 0
    for links, (sure, possible) in zip(hypotheses, golds, strict=True):
        for i, j in sure:
            if (i - 1, j + 1) in sure and (not agreeing or (i, j + 1) in possible):
                swaps += 1
                left = [source for source, target in links if target == j]
                right = [source for source, target in links if target == j + 1]
                crossed += bool(left and right and min(left) > max(right))
    return crossed, swaps
