"""The words of the built-in corpus, English and Spanish, and how they inflect.

Spanish paradigms are four forms: masculine and feminine singular, masculine and feminine plural. Persons are
counted I, you, he or she, we, they: 0 to 4.
"""

from collections.abc import Mapping
from dataclasses import dataclass

Adjective = tuple[str, tuple[str, ...]]  # English, and the Spanish paradigm


@dataclass(frozen=True)
class Noun:
    english: tuple[str, ...]  # singular and plural; only the singular if one has just one
    spanish: tuple[str, str]
    gender: int  # masculine, feminine
    kind: str
    preposition: str  # in the garden, on the beach, at the market


@dataclass(frozen=True)
class Verb:
    """Forms by tense ("present", "past", "future") and person; English makes its future with "will"."""

    base: str
    english: Mapping[str, tuple[str, ...]]
    infinitive: str
    spanish: Mapping[str, tuple[str, ...]]
    objects: tuple[str, ...] = ()  # kinds of nouns
    participle: str = ""  # the "going" of "be going to"
    stative: bool = False  # its past is the imperfect


def english_plural(word: str) -> str:
    if word.endswith("y") and not word.endswith("oy"):
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "x", "ch", "sh", "to")) else "s")


def plural(word: str) -> str:
    """Gatos, flores, jardines, habitaciones, jóvenes."""
    if word[-1] in "aeiou":
        return word + "s"
    return {"joven": "jóven"}.get(word, word.replace("ín", "in").replace("ón", "on")) + "es"


def paradigms(entries: str) -> dict[str, tuple[str, ...]]:
    """Spanish forms by English word, from entries of `english:paradigm`, written out or regular: hermoso, azul."""
    by_word = {}
    for entry in entries.split():
        english, forms = entry.split(":")
        written = forms.split("-")
        if len(written) == 1:
            written.append(forms[:-1] + "a" if forms.endswith("o") else forms)
        if len(written) == 2:
            written += [plural(form) for form in written]
        by_word[english] = tuple(written)
    return by_word


def choices(table: str) -> dict[str, list[list[Adjective]]]:
    """Groups of adjectives by kind of noun; a thing can be only one of a group: big or small, red or blue."""
    by_kind: dict[str, list[list[Adjective]]] = {}
    for kind, row in _rows(table):
        by_kind.setdefault(kind, []).extend(list(paradigms(group.replace("/", " ")).items()) for group in row.split())
    return by_kind


def nouns(table: str) -> dict[str, list[Noun]]:
    """Nouns by kind, from entries of `english[/plural] spanish gender [preposition]`; the plural "-" means none."""
    by_kind: dict[str, list[Noun]] = {}
    for kind, row in _rows(table):
        for entry in row.split(","):
            english, spanish, gender, *preposition = entry.split()
            singular, _, written = english.partition("/")
            both = (singular,) if written == "-" else (singular, written or english_plural(singular))
            made = Noun(both, (spanish, plural(spanish)), "mf".index(gender), kind, "".join(preposition))
            by_kind.setdefault(kind, []).append(made)
    return by_kind


def _rows(table: str) -> list[list[str]]:
    """The kind and the entries of each line; a kind may have several lines."""
    return [line.strip().split(": ", 1) for line in table.strip().splitlines()]


def verb(english: str, infinitive: str, objects: str = "", *, participle: str = "", stative: bool = False) -> Verb:
    """A verb from its English `base third-person past` and the tables of irregular Spanish forms."""
    base, third, past = english.split()
    forms = {"present": (base, base, third, base, base), "past": (past,) * 5}
    if base == "be":
        forms = {"present": ("am", "are", "is", "are", "are"), "past": ("was", "were", "was", "were", "were")}
    spanish = {}
    for tense in ("present", "past", "future"):
        name = tense if tense != "past" else "imperfect" if stative else "preterite"
        stem = FUTURE_STEMS.get(infinitive, infinitive) if tense == "future" else infinitive[:-2]
        stressed = STRESSED_STEMS.get(infinitive, stem) if tense == "present" else stem
        endings = ENDINGS[name][infinitive[-2:]].split()
        regular = " ".join((stem if ending.endswith("mos") else stressed) + ending for ending in endings)
        spanish[tense] = tuple(IRREGULAR.get(infinitive, {}).get(name, regular).split())
    return Verb(base, forms, infinitive, spanish, tuple(objects.split()), participle, stative)


ENDINGS = {
    "present": {"ar": "o as a amos an", "er": "o es e emos en", "ir": "o es e imos en"},
    "preterite": {"ar": "é aste ó amos aron", "er": "í iste ió imos ieron", "ir": "í iste ió imos ieron"},
    "imperfect": {"ar": "aba abas aba ábamos aban", "er": "ía ías ía íamos ían", "ir": "ía ías ía íamos ían"},
    "future": dict.fromkeys(("ar", "er", "ir"), "é ás á emos án"),
}
STRESSED_STEMS = {"querer": "quier", "encontrar": "encuentr", "cerrar": "cierr", "perder": "pierd", "dormir": "duerm"}
FUTURE_STEMS = {"tener": "tendr", "decir": "dir", "querer": "querr", "saber": "sabr"}
IRREGULAR = {
    "ser": {"present": "soy eres es somos son", "imperfect": "era eras era éramos eran"},
    "estar": {"present": "estoy estás está estamos están"},
    "haber": {"present": "hay " * 5, "imperfect": "había " * 5, "future": "habrá " * 5},
    "ir": {"present": "voy vas va vamos van", "preterite": "fui fuiste fue fuimos fueron"},
    "tener": {"present": "tengo tienes tiene tenemos tienen"},
    "conocer": {"present": "conozco conoces conoce conocemos conocen"},
    "dormir": {"preterite": "dormí dormiste durmió dormimos durmieron"},
    "ver": {"present": "veo ves ve vemos ven", "preterite": "vi viste vio vimos vieron"},
    "decir": {"present": "digo dices dice decimos dicen", "preterite": "dije dijiste dijo dijimos dijeron"},
    "saber": {"present": "sé sabes sabe sabemos saben"},
}


# The words.

BE = "be is was"
SER, ESTAR, HABER = (verb(BE, infinitive, stative=True) for infinitive in ("ser", "estar", "haber"))
GOING = verb(BE, "ir", participle="going")
LIKE = verb("like likes liked", "gustar")
GOODS = "animal text thing clothes food furniture home"
HAVE = verb("have has had", "tener", f"kin {GOODS}", stative=True)
WANT = verb("want wants wanted", "querer", GOODS, stative=True)
NEED = verb("need needs needed", "necesitar", "thing clothes food furniture", stative=True)
TRANSITIVE = [
    *(HAVE, WANT, NEED),
    verb("know knows knew", "conocer", "person kin place", stative=True),
    verb("buy buys bought", "comprar", GOODS),
    verb("sell sells sold", "vender", GOODS),
    verb("see sees saw", "ver", "person kin animal thing home place"),
    verb("find finds found", "encontrar", "animal text thing clothes"),
    verb("lose loses lost", "perder", "text thing clothes"),
    verb("eat eats ate", "comer", "food"),
    verb("prepare prepares prepared", "preparar", "food"),
    verb("write writes wrote", "escribir", "text"),
    verb("wear wears wore", "llevar", "clothes"),
    verb("wash washes washed", "lavar", "clothes"),
    verb("clean cleans cleaned", "limpiar", "furniture home part"),
    verb("paint paints painted", "pintar", "furniture home part"),
    verb("open opens opened", "abrir", "part"),
    verb("close closes closed", "cerrar", "part"),
    verb("visit visits visited", "visitar", "person kin place"),
    verb("help helps helped", "ayudar", "person kin"),
    verb("call calls called", "llamar", "person kin"),
]
ANIMAL = (verb("sleep sleeps slept", "dormir"), verb("run runs ran", "correr"))  # things that animals do, too
STAYING = [  # in a place
    verb("live lives lived", "vivir", stative=True),
    verb("work works worked", "trabajar"),
    verb("sing sings sang", "cantar"),
    verb("dance dances danced", "bailar"),
    *ANIMAL,
]
MOVING = [  # to a place
    verb("go goes went", "ir"),
    verb("travel travels traveled", "viajar"),
    verb("return returns returned", "regresar"),
]
MODALS = [(GOING, "a:0"), (WANT, ""), (NEED, ""), (HAVE, "que:0")]  # and the translation of "to"
SAYING = [
    verb("think thinks thought", "creer", stative=True),
    verb("know knows knew", "saber", stative=True),
    verb("say says said", "decir"),
]

NOUNS = nouns("""
    person: man/men hombre m, woman/women mujer f, boy niño m, girl niña f, student estudiante m
    kin: brother hermano m, sister hermana f, friend amigo m, son hijo m, daughter hija f, cousin primo m
    kin: neighbor vecino m, mother/- madre f, father/- padre m, grandmother/- abuela f
    animal: cat gato m, dog perro m, horse caballo m, cow vaca f, bird pájaro m
    text: book libro m, letter carta f, song canción f, poem poema m, story historia f
    thing: car coche m, bicycle bicicleta f, lamp lámpara f, flower flor f, clock reloj m, map mapa m
    clothes: shirt camisa f, hat sombrero m, shoe zapato m, coat abrigo m, dress vestido m
    food: apple manzana f, orange naranja f, egg huevo m, tomato tomate m, cake pastel m
    furniture: table mesa f on, chair silla f on, bed cama f on, box caja f in
    home: house casa f in, garden jardín m in, kitchen cocina f in, room habitación f in
    place: school escuela f at, church iglesia f in, city ciudad f in, beach playa f on, market mercado m at
    place: park parque m in, hotel hotel m in, station estación f at, street calle f on, town pueblo m in
    part: door puerta f, window ventana f
""")
# With person and gender:
NAMES = (("Ana", 2, 1), ("Carmen", 2, 1), ("Luis", 2, 0), ("Pablo", 2, 0), ("Hugo", 2, 0), ("Isabel", 2, 1))
PROFESSIONS = paradigms("teacher:profesor-profesora doctor:médico nurse:enfermero lawyer:abogado")
PRONOUNS = (("I", 0, 0), ("you", 1, 0), ("he", 2, 0), ("she", 2, 1), ("we", 3, 0), ("they", 4, 0))
CLITICS = (("me", "me", 0), ("you", "te", 1), ("him", "lo", 2), ("her", "la", 2), ("us", "nos", 3), ("them", "los", 4))
DATIVES = ("me", "te", "le", "nos", "les")

DETERMINERS = paradigms("""
    a:un-una-unos-unas some:un-una-unos-unas another:otro many:mucho
    the:el-la-los-las this:este-esta-estos-estas
    my:mi your:tu his:su her:su our:nuestro their:su
""")
NUMBERS = ("two dos", "three tres", "four cuatro", "five cinco", "six seis", "seven siete", "eight ocho")
POSSESSIVES = ("my", "my", "your", "his", "her", "our", "their")
DEFINITE = ("the", "the", "the", "the", "this", *POSSESSIVES)
INDEFINITE = ("a", "a", "a", "a", "a", "a", "some", "many", "another", "number")
ANY = (*DEFINITE, *INDEFINITE, "bare")
NEGATED = (*DEFINITE, "a", "a", "a", "bare")
LACKING = ("a", "a", "a", "bare")
SUBJECT = (*DEFINITE, *DEFINITE, "a", "some", "many", "number")
LOCAL = ("the", "the", "the", "the", "my", "our", "this", "a")
SINGULAR, PLURAL = ("a", "another"), ("some", "many", "number", "bare")

BEFORE = paradigms("""
    good:buen-buena-buenos-buenas bad:mal-mala-malos-malas great:gran-gran-grandes-grandes
    first:primer-primera-primeros-primeras last:último best:mejor other:otro
""")  # adjectives that precede their noun
AFTER = choices("""
    person: tall:alto strong:fuerte young:joven/old:viejo intelligent:inteligente famous:famoso
    person: Spanish:español-española
    animal: big:grande/small:pequeño black:negro/white:blanco young:joven/old:viejo beautiful:hermoso
    text: long:largo interesting:interesante difficult:difícil/easy:fácil important:importante famous:famoso
    thing: big:grande/small:pequeño new:nuevo/old:viejo red:rojo/blue:azul expensive:caro/cheap:barato
    clothes: new:nuevo/old:viejo red:rojo/black:negro/white:blanco/green:verde beautiful:hermoso cheap:barato
    food: big:grande/small:pequeño sweet:dulce delicious:delicioso fresh:fresco cheap:barato
    furniture: big:grande/small:pequeño new:nuevo/old:viejo white:blanco/green:verde expensive:caro
    home: big:grande/small:pequeño old:viejo/modern:moderno beautiful:hermoso expensive:caro
    place: big:grande/small:pequeño old:viejo/modern:moderno beautiful:hermoso famous:famoso
    part: big:grande/small:pequeño new:nuevo/old:viejo white:blanco/green:verde
""")  # adjectives that follow their noun, or stand with ser
STATE = choices("""
    person: tired:cansado happy:contento/sad:triste sick:enfermo busy:ocupado worried:preocupado
    animal: tired:cansado happy:contento sick:enfermo dirty:sucio
    thing: dirty:sucio/clean:limpio broken:roto
    clothes: dirty:sucio/clean:limpio
    food: hot:caliente/cold:frío
    home: dirty:sucio/clean:limpio empty:vacío
    place: closed:cerrado/open:abierto empty:vacío
    part: closed:cerrado/open:abierto dirty:sucio/clean:limpio
""")  # adjectives that stand with estar
HUMAN = ("person", "kin")
AFTER["kin"], STATE["kin"], STATE["furniture"] = AFTER["person"], STATE["person"], STATE["thing"]
# Not "very" black:
ABSOLUTE = ("black", "white", "red", "blue", "green", "Spanish", "delicious", "broken", "open", "closed")

# A Spanish word comes surely from the English word whose position follows ":", and possibly from that after "~".
DAYS = (("on Monday", "el:0 lunes:1"), ("on Friday", "el:0 viernes:1"), ("on Sunday", "el:0 domingo:1"))
TIMES = {
    "present": (
        ("today", "hoy:0"),
        ("every day", "todos:0~1 los~1 días:1"),
        ("every week", "todas:0~1 las~1 semanas:1"),
    ),
    "past": (("yesterday", "ayer:0"), ("last week", "la~1 semana:1 pasada:0~1"), *DAYS),
    "future": (("tomorrow", "mañana:0"), ("next year", "el~1 próximo:0~1 año:1"), *DAYS),
}
ADVERBS = (("always", "siempre:0"), ("never", "nunca:0"), ("also", "también:0"))
