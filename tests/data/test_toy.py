"""Tests of the built-in corpus against a small Spanish grammar that is independent of the corpus's grammar."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from seqtool.data.corpora import toy_words
from seqtool.data.corpora.draw import StableRandom
from seqtool.data.corpora.parallel import Toy
from seqtool.data.corpora.toy import (
    Nominal,
    Pair,
    Word,
    assemble,
    be_clause,
    generate,
    noun_phrase,
    phrase,
    sentence,
    statement,
    surface,
)
from seqtool.data.text.alignment import parse_pharaoh
from seqtool.data.text.words import words_and_punctuation
from seqtool.errors import InputError

DIGEST_SCRIPT = """
import hashlib
from seqtool.data.corpora.toy import generate
splits = generate(seed=1, train=300, valid=20, test=20)
rows = [(name, pair.source, pair.target, pair.alignment) for name, split in splits.items() for pair in split]
print(hashlib.sha256("\\n".join(map("\\t".join, rows)).encode()).hexdigest())
"""
# What DIGEST_SCRIPT prints (Python 3.11). It may change only with the grammar, and toy.GRAMMAR must then change, too.
GOLDEN_DIGEST = "acb0660a6d97ec7725d2fbdd567bb778e4937ca09cff49c13f18adc268753610"

MASCULINE = """
    hombre niño estudiante hermano amigo hijo primo vecino padre gato perro caballo pájaro libro poema coche
    reloj mapa sombrero zapato abrigo vestido huevo tomate pastel jardín mercado parque hotel pueblo día año
"""
FEMININE = """
    mujer niña hermana hija madre abuela vaca carta canción historia bicicleta lámpara flor camisa manzana
    naranja mesa silla cama caja casa cocina habitación escuela iglesia ciudad playa estación calle puerta
    ventana semana
"""
NUMERALS = "dos tres cuatro cinco seis siete ocho"
PRENOMINAL = {  # words between the start of a noun phrase and its noun
    "ms": "el al del un este nuestro otro buen mal gran primer último mejor próximo mi tu su",
    "fs": "la una esta nuestra otra buena mala gran primera última mejor próxima mi tu su",
    "mp": f"""los unos estos nuestros otros muchos todos buenos malos grandes primeros últimos mejores
        mis tus sus {NUMERALS}""",
    "fp": f"""las unas estas nuestras otras muchas todas buenas malas grandes primeras últimas mejores
        mis tus sus {NUMERALS}""",
}
FOUR_FORM_ADJECTIVES = """
    pequeño nuevo viejo rojo negro blanco caro barato hermoso famoso largo alto delicioso fresco moderno
    cansado contento enfermo ocupado preocupado sucio limpio roto frío vacío cerrado abierto pasado
"""
TWO_FORM_ADJECTIVES = "grande interesante importante fuerte inteligente dulce caliente triste verde"
IRREGULAR_ADJECTIVES = {
    "ms": "azul fácil difícil joven español",
    "fs": "azul fácil difícil joven española",
    "mp": "azules fáciles difíciles jóvenes españoles",
    "fp": "azules fáciles difíciles jóvenes españolas",
}
ADJECTIVES = {
    form: {
        *(adjective[:-1] + ending for adjective in FOUR_FORM_ADJECTIVES.split()),
        *(adjective + suffix for adjective in TWO_FORM_ADJECTIVES.split()),
        *IRREGULAR_ADJECTIVES[form].split(),
    }
    for form, ending, suffix in (("ms", "o", ""), ("fs", "a", ""), ("mp", "os", "s"), ("fp", "as", "s"))
}
COPULAS = "es era será está estaba estará son eran serán están estaban estarán"
VERBS = {  # English and Spanish forms for I, you, he or she, we, they
    "am are is are are": ("soy eres es somos son", "estoy estás está estamos están"),
    "was were was were were": ("era eras era éramos eran", "estaba estabas estaba estábamos estaban"),
    "have have has have have": ("tengo tienes tiene tenemos tienen",),
    "had had had had had": ("tenía tenías tenía teníamos tenían",),
    "buy buy buys buy buy": ("compro compras compra compramos compran",),
    "bought bought bought bought bought": ("compré compraste compró compramos compraron",),
    "sold sold sold sold sold": ("vendí vendiste vendió vendimos vendieron",),
    "wrote wrote wrote wrote wrote": ("escribí escribiste escribió escribimos escribieron",),
    "went went went went went": ("fui fuiste fue fuimos fueron",),
    "see see sees see see": ("veo ves ve vemos ven",),
    "sleep sleep sleeps sleep sleep": ("duermo duermes duerme dormimos duermen",),
    "think think thinks think think": ("creo crees cree creemos creen",),
}
DICTIONARY = """
    gato:cat gatos:cats perro:dog casa:house casas:houses jardines:gardens mujeres:women niños:boys
    grande:big gran:great grandes:big,great otro:another,other otra:another,other buen:good
    malas:bad fácil:easy rojas:red española:Spanish muy:very un:a,an una:a,an unos:some estas:these
    la:the,her los:the,them su:his,her,their mi:my nuestra:our pero:but porque:because cuando:when
    si:if que:that,to y:and e:and o:or u:or no:not nunca:never siempre:always en:in,on,at con:with
    cerca:near detrás:behind al:to,the del:of,the comprar:buy compraré:buy compraste:bought,buy
    tengo:have tenían:had,have hay:is,are había:was,were gusta:like,likes voy:go,going lo:him
    me:me,I ayer:yesterday mañana:tomorrow pasada:last dónde:where quién:who ocho:eight dos:two
    médica:doctor profesores:teachers
"""
ARTICLES = {"el", "la", "los", "las"}
NO_COUNTERPART = {"¿", "a", "de", *ARTICLES}  # the only words that may have no sure link


@pytest.fixture(scope="module")
def corpus() -> dict[str, list[Pair]]:
    return generate(seed=0, train=20_000, valid=1_000, test=1_000)


@pytest.fixture(scope="module")
def pairs(corpus: dict[str, list[Pair]]) -> list["Aligned"]:
    return [Aligned(pair) for split in corpus.values() for pair in split]


class Aligned:
    """The words of a pair, and its links by target position."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.source, self.target = (
            words_and_punctuation(pair.source),
            [word.lower() for word in words_and_punctuation(pair.target)],
        )
        self.links = sorted(parse_pharaoh(pair.alignment)[0], key=lambda link: link[1])
        self.sure = {target: source for source, target in self.links}
        self.possible = parse_pharaoh(pair.alignment)[1]

    def sources(self, j: int) -> set[int]:
        """Return the positions of all source words to which the target word has a sure or possible link."""
        return {i for i, target in {*self.links, *self.possible} if target == j}


def plural(noun: str) -> str:
    return noun + "s" if noun[-1] in "aeo" else noun.replace("í", "i").replace("ó", "o") + "es"


# Each noun with its gender and number, the keys of PRENOMINAL and ADJECTIVES
LEXICON = dict.fromkeys(MASCULINE.split(), "ms") | dict.fromkeys(FEMININE.split(), "fs")
LEXICON |= {plural(noun): form[0] + "p" for noun, form in LEXICON.items()}
PRENOMINAL_WORDS = {word for form in PRENOMINAL for word in PRENOMINAL[form].split()}
ALL_ADJECTIVES = set().union(*ADJECTIVES.values())


def dependents(pair: Aligned, j: int) -> Iterator[tuple[int, set[str]]]:
    """Yield the position of each article and adjective of the noun at j, with the words that would agree there."""
    target, form = pair.target, LEXICON[pair.target[j]]
    left, right = j - 1, j + 1
    while left >= 0 and target[left] in PRENOMINAL_WORDS:
        yield left, set(PRENOMINAL[form].split())
        left = -1 if target[left] in ARTICLES else left - 1  # an article begins the phrase
    attributive = {k for k, i in pair.sure.items() if i < pair.sure[j]}  # excludes verbs: limpia is clean, or cleans
    while target[right] == "muy" or (target[right] in ALL_ADJECTIVES and right in attributive):
        if target[right] != "muy":
            yield right, ADJECTIVES[form]
        right += 2 if target[right + 1] in ("y", "e") and target[right + 2] in ALL_ADJECTIVES else 1


def test_the_corpus_does_not_depend_on_the_hash_seed() -> None:
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", DIGEST_SCRIPT]
        output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        assert output.strip() == GOLDEN_DIGEST


def test_another_seed_gives_another_corpus() -> None:
    assert generate(seed=1, train=9, valid=0, test=0) != generate(seed=2, train=9, valid=0, test=0)


def test_the_test_set_does_not_depend_on_the_size_of_train() -> None:
    small, large = (generate(seed=5, train=size, valid=30, test=30) for size in (10, 100))
    assert small["test"] == large["test"]
    assert small["valid"] == large["valid"]


def test_splits_have_their_sizes_and_no_common_sentence(corpus: dict[str, list[Pair]]) -> None:
    assert {name: len(split) for name, split in corpus.items()} == {
        "train": 20_000,
        "valid": 1_000,
        "test": 1_000,
    }
    everything = [pair for split in corpus.values() for pair in split]
    assert len({pair.source for pair in everything}) == len({pair.target for pair in everything}) == 22_000


def test_lengths_and_words_vary(pairs: list[Aligned]) -> None:
    for side in ("source", "target"):
        lengths = [len(getattr(pair.pair, side).split()) for pair in pairs]
        assert min(lengths) == 3
        assert 22 <= max(lengths) <= 25
        assert 8 <= sum(lengths) / len(lengths) <= 12
        assert len({word.lower() for pair in pairs for word in getattr(pair, side)}) >= 150


def test_english_determines_spanish() -> None:
    rng, translations = StableRandom(9), dict[str, str]()
    pairs = [pair for pair in (surface(sentence(rng)) for _ in range(30_000)) if pair]
    for pair in pairs:
        assert translations.setdefault(pair.source, pair.target) == pair.target
    assert len(translations) < len(pairs)  # some sentences are drawn twice


def test_spelling_and_punctuation_are_correct(pairs: list[Aligned]) -> None:
    for pair in pairs:
        source, target = pair.pair.source, pair.pair.target
        assert source[0].isupper()
        assert target.lstrip("¿")[0].isupper()
        assert (source[-1], target[-1], target.count("¿")) in ((".", ".", 0), ("?", "?", 1))
        assert target.startswith("¿") == target.endswith("?")
        for first, second in pairwise(pair.target):
            assert (first, second) not in (("a", "el"), ("de", "el"))
            assert first != "y" or not second.startswith(("i", "hi"))
            assert first != "e" or second.startswith(("i", "hi"))
            assert first != "o" or not second.startswith(("o", "ho"))
            assert first != "u" or second.startswith(("o", "ho"))
        for first, second in pairwise(pair.source):
            assert first.lower() not in ("a", "an") or (first.lower() == "an") == (second[0] in "aeiou")


def test_articles_and_adjectives_agree(pairs: list[Aligned]) -> None:
    checked = 0
    for pair in pairs:
        for j, word in enumerate(pair.target):
            if word in LEXICON:
                for k, agreeing in dependents(pair, j):
                    assert pair.target[k] in agreeing, pair.pair
                    checked += 1
    assert checked > 40_000


def test_every_noun_and_adjective_is_checked(pairs: list[Aligned]) -> None:
    nouns = {form for kind in toy_words.NOUNS.values() for noun in kind for form in noun.spanish}
    assert nouns - set(LEXICON) == set()
    adjectives = [*toy_words.AFTER.values(), *toy_words.STATE.values()]
    assert {form for kind in adjectives for group in kind for _, forms in group for form in forms} <= ALL_ADJECTIVES


def test_predicates_agree(pairs: list[Aligned]) -> None:
    checked = 0
    for pair in pairs:
        first, second, copula, adjective, *_ = [word for word in pair.target if word not in ("muy", "no")] + [""]
        is_noun_phrase = first in PRENOMINAL_WORDS and second in LEXICON
        if is_noun_phrase and copula in COPULAS.split() and adjective in ALL_ADJECTIVES:
            assert adjective in ADJECTIVES[LEXICON[second]], pair.pair
            checked += 1
        pronoun = {"She": "fs", "He": "ms", "We": "mp", "They": "mp"}.get(pair.source[0])
        if pronoun and pair.source[1] in ("is", "was", "are", "were") and pair.target[1] in ALL_ADJECTIVES:
            assert pair.target[1] in ADJECTIVES[pronoun], pair.pair
            checked += 1
    assert checked > 500


def test_verbs_agree_with_dropped_pronouns(pairs: list[Aligned]) -> None:
    table: dict[tuple[str, str], set[str]] = {}
    for english, spanish in VERBS.items():
        for person, verb in enumerate(english.split()):
            for pronoun in ("i", "you", "he she", "we", "they")[person].split():
                table.setdefault((pronoun, verb), set()).update(forms.split()[person] for forms in spanish)
    checked = 0
    for pair in pairs:
        for j, i in pair.sure.items():
            pronoun, auxiliary = pair.source[i - 1].lower(), pair.source[i - 2].lower()
            agreeing = table.get((pronoun, pair.source[i])) if i and auxiliary not in ("did", "will") else None
            if agreeing:
                assert pair.target[j] in agreeing, pair.pair
                checked += 1
    assert checked > 1_500


def test_every_word_with_a_counterpart_has_one_sure_link(pairs: list[Aligned]) -> None:
    for pair in pairs:
        assert len(pair.links) == len(pair.sure)
        unlinked = {pair.target[j] for j in range(len(pair.target)) if j not in pair.sure}
        assert unlinked <= NO_COUNTERPART, pair.pair
        assert all(0 <= i < len(pair.source) and 0 <= j < len(pair.target) for i, j in (*pair.links, *pair.possible))
        assert pair.sure[len(pair.target) - 1] == len(pair.source) - 1
        assert all(pair.sources(j) for j in range(len(pair.target)))  # words without a sure link have a possible one


def test_sure_links_are_translations(pairs: list[Aligned]) -> None:
    entries = (entry.split(":") for entry in DICTIONARY.split())
    dictionary = {spanish: set(english.split(",")) for spanish, english in entries}
    unused_entries = set(dictionary)
    for pair in pairs:
        for j, i in pair.sure.items():
            if pair.target[j] in dictionary:
                english = pair.source[i] if pair.source[i] in ("I", "Spanish") else pair.source[i].lower()
                assert english in dictionary[pair.target[j]], pair.pair
                unused_entries.discard(pair.target[j])
    assert not unused_entries


def test_verbs_do_not_link_to_the_dropped_pronoun(pairs: list[Aligned]) -> None:
    datives = {"me", "te", "le", "nos", "les"}  # me gusta: "I" does have a counterpart there
    for pair in pairs:
        for j, i in pair.sure.items():
            assert pair.source[i].lower() not in ("i", "he", "she", "we", "they") or pair.target[j] in datives


def test_a_noun_that_decides_a_gender_is_a_possible_link(pairs: list[Aligned]) -> None:
    checked = 0
    for pair in pairs:
        for j, word in enumerate(pair.target):
            if word in LEXICON:
                for k, _ in dependents(pair, j):
                    if pair.target[k].endswith(("o", "a", "os", "as")) and pair.target[k] not in NUMERALS.split():
                        assert (pair.sure[j], k) in pair.possible, pair.pair
                        checked += 1
    assert checked > 20_000


def test_adjective_and_noun_swap_often(pairs: list[Aligned]) -> None:
    def has_swap(pair: Aligned) -> bool:
        return any(
            pair.target[j - 1] in LEXICON and pair.target[j] in ALL_ADJECTIVES and pair.sure.get(j - 1, -1) == i + 1
            for i, j in pair.links
        )

    assert sum(map(has_swap, pairs)) / len(pairs) > 0.4


def test_the_grammar_makes_the_sentence_of_the_lecture() -> None:
    def draw_until(text: str, make: Callable[[], Nominal]) -> Nominal:
        return next(nominal for nominal in iter(make, None) if " ".join(word.text for word in nominal.source) == text)

    rng = StableRandom(0)
    owned = toy_words.HAVE.objects
    cat = draw_until("a big cat", lambda: noun_phrase(rng, owned, toy_words.INDEFINITE))
    house = draw_until("a small house", lambda: noun_phrase(rng, owned, toy_words.INDEFINITE))
    subject = Nominal((Word("I"),), person=0)
    have = assemble(subject, toy_words.HAVE, "present", cat + phrase("but", "pero:0") + house)
    assert surface(statement(have)) == Pair(
        "I have a big cat but a small house.",
        "Tengo un gato grande pero una casa pequeña.",
        "1-0 2-1 4?1 4-2 3-3 5-4 6-5 8?5 8-6 7-7 8?7 9-8",
    )


@pytest.fixture(scope="module")
def continuous_pairs() -> list[Aligned]:
    return [Aligned(pair) for pair in generate(seed=4, train=0, valid=0, test=4_000, continuous=True)["test"]]


def test_continuous_tenses_begin_with_the_sentence_of_the_lecture(continuous_pairs: list[Aligned]) -> None:
    lecture = Pair("We are eating bread.", "Estamos comiendo pan.", "1-0 2-1 3-2 4-3")
    assert continuous_pairs[0].pair == lecture
    corpora = [Toy(seed=4, train=20, valid=5, test=5, longest=25, continuous=on) for on in (False, True)]
    assert next(corpora[1].pairs("test")) == (lecture.source, lecture.target)
    assert lecture.source not in {source for split in ("train", "valid") for source, _ in corpora[1].pairs(split)}
    for split in ("train", "valid", "test"):
        usual = generate(seed=4, train=20, valid=5, test=5)[split]
        assert list(corpora[0].pairs(split)) == [(pair.source, pair.target) for pair in usual]
    usual, continuous = (corpus.fingerprint(str) for corpus in corpora)
    assert "continuous" not in usual and usual == {key: continuous[key] for key in usual} != continuous
    long = generate(seed=4, train=1, valid=1, test=50, longest=50, continuous=True)["test"]
    assert long[0] == lecture and any(" estamos " in pair.target for pair in long)


def test_be_and_a_participle_are_estar_and_a_gerund(continuous_pairs: list[Aligned]) -> None:
    """Estar agrees with the subject, in the tense of "be"; each of the two words has one sure link, to its own."""
    forms = {"am": ["estoy"], "is": ["está"], "are": ["estás", "estamos", "están"], "was": ["estaba"]}
    forms["were"] = ["estabas", "estábamos", "estaban"]
    checked, gerunds = 0, dict[str, set[str]]()
    for pair in continuous_pairs:
        by_source = {i: j for j, i in pair.sure.items()}
        assert len(pair.links) == len(pair.sure) and all(pair.sources(j) for j in range(len(pair.target)))
        for j, i in pair.sure.items():
            if pair.target[j].endswith(("ando", "endo")) and pair.target[j] not in ("cuando", "vendo"):
                be = next(k for k in range(i - 1, -1, -1) if pair.source[k].lower() in forms)
                english, spanish = pair.source[be].lower(), pair.target[by_source[be]]
                assert pair.source[i].endswith("ing") and spanish in forms[english], pair.pair
                if pair.source[be - 1].lower() in ("you", "we", "they") and be:
                    person = ("you", "we", "they").index(pair.source[be - 1].lower())
                    assert spanish == forms[english][person], pair.pair
                gerunds.setdefault(pair.target[j], set()).add(pair.source[i])
                checked += 1
        assert not any(word.endswith("ing") and i not in by_source for i, word in enumerate(pair.source))
    assert checked > 800 and all(len(english) == 1 for english in gerunds.values())
    irregular = {"durmiendo": "sleeping", "yendo": "going", "viendo": "seeing", "corriendo": "running"}
    regular = {"escribiendo": "writing", "bailando": "dancing", "comprando": "buying", "abriendo": "opening"}
    assert all(gerunds[word] == {english} for word, english in (irregular | regular).items())
    assert gerunds.keys().isdisjoint({"teniendo", "queriendo", "viviendo", "conociendo"}), "states are not continuous"


def test_a_clause_can_repeat_an_adjective_of_its_subject() -> None:
    """If the subject already has an adjective of every group, the clause repeats one of them."""
    rng = StableRandom(1)
    for kind, groups in toy_words.AFTER.items():
        nominal = noun_phrase(rng, (kind,), ("the",))
        adjectives = tuple(Word(group[0][0]) for group in (*groups, *toy_words.STATE.get(kind, ())))
        subject = replace(nominal, source=nominal.source + adjectives)
        assert all(be_clause(rng, subject, "present", is_question=False).target for _ in range(30))


def test_long_sentences_consist_of_clauses() -> None:
    """Lengths are spread up to the chosen maximum, and the usual corpus stays the same."""
    pairs = generate(seed=3, train=1, valid=1, test=600, longest=100)["test"]
    lengths = [len(words_and_punctuation(pair.source)) for pair in pairs]
    assert max(lengths) <= 100 and max(len(words_and_punctuation(pair.target)) for pair in pairs) <= 100
    for low in range(0, 100, 20):
        assert sum(low < length <= low + 20 for length in lengths) > 60
    for pair in pairs:
        parse_pharaoh(pair.alignment)
        assert pair.source[0].isupper() and pair.source.endswith(".") and pair.target.endswith(".")
    assert generate(seed=3, train=0, valid=0, test=5, longest=25) == generate(seed=3, train=0, valid=0, test=5)
    for longest in (24, 101):
        with pytest.raises(InputError, match=rf"^data.longest must be from 25 to 100 words, not {longest}\.$"):
            Toy(seed=1, train=1, valid=1, test=1, longest=longest)
    usual, long = Toy(seed=1, train=1, valid=1, test=1, longest=25), Toy(seed=1, train=1, valid=1, test=1, longest=50)
    assert "longest" not in usual.fingerprint(str) and long.fingerprint(str)["longest"] == 50
