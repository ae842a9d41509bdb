"""The words of the built-in corpus, English and Spanish. Persons are counted as in `toy_inflection.py`."""

from seqtool.data.corpora.toy_inflection import choices, nouns, paradigms, verb

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
