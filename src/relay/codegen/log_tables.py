"""Tables by which logarithms of 32-bit floats are computed where the machine looks up all lanes of a vector at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogTable:
    """A logarithm by pieces of the mantissa m in [3/4, 3/2), which its first four bits number: those from 1 on first.

    ``log(m) = values[piece] + log(1 + f)`` with ``f = m * inverses[piece] - 1``, where an inverse is one near the middle of its
    piece whose logarithm is almost a multiple of 2**-16; in both pieces at 1 it is 1, so that the result is relatively exact
    there.
    ``log(1 + f)`` is ``slope * f``, with what the slope lost when it was rounded, and ``f**2`` times a polynomial (minimax of the
    relative error). ``exponent`` is the logarithm of 2 in two parts, the first a multiple of 2**-16, so that adding a value to a
    multiple of it is exact, the second not below 0: zero and infinity, whose exponents are infinite, stay so.
    """

    inverses: tuple[float, ...]
    values: tuple[float, ...]
    slope: tuple[float, float]
    coefficients: tuple[float, ...]
    exponent: tuple[float, float]


# |error| / log(1 + f): 2.8e-9
LOG_TABLE_F32 = LogTable(
    inverses=(
        1.0,
        0.9307239055633545,
        0.8806674480438232,
        0.8242486119270325,
        0.7880772352218628,
        0.7529760003089905,
        0.7168849110603333,
        0.6858854293823242,
        1.3020585775375366,
        1.2455459833145142,
        1.2099723815917969,
        1.1691362857818604,
        1.1174376010894775,
        1.0768616199493408,
        1.0359870195388794,
        1.0,
    ),
    values=(
        0.0,
        0.0717926025390625,
        0.1270751953125,
        0.1932830810546875,
        0.2381591796875,
        0.283721923828125,
        0.3328399658203125,
        0.377044677734375,
        -0.263946533203125,
        -0.219573974609375,
        -0.1905975341796875,
        -0.1562652587890625,
        -0.1110382080078125,
        -0.0740509033203125,
        -0.0353546142578125,
        0.0,
    ),
    slope=(1.0, 0.0),
    coefficients=(-0.5, 0.3333445191383362, -0.25006103515625, 0.1884603500366211),
    exponent=(0.693145751953125, 1.428606765330187e-06),
)

# |error| / log2(1 + f): 2.9e-9
LOG2_TABLE_F32 = LogTable(
    inverses=(
        1.0,
        0.9284319281578064,
        0.8808236122131348,
        0.8290627598762512,
        0.7853279709815979,
        0.7501340508460999,
        0.7099243998527527,
        0.6884800791740417,
        1.3189581632614136,
        1.2672804594039917,
        1.2124485969543457,
        1.1593636274337769,
        1.1355172395706177,
        1.0779054164886475,
        1.0331778526306152,
        1.0,
    ),
    values=(
        0.0,
        0.1071319580078125,
        0.183074951171875,
        0.27044677734375,
        0.3486328125,
        0.4147796630859375,
        0.4942626953125,
        0.53851318359375,
        -0.3993988037109375,
        -0.34173583984375,
        -0.277923583984375,
        -0.2133331298828125,
        -0.183349609375,
        -0.1082305908203125,
        -0.047088623046875,
        0.0,
    ),
    slope=(1.4426950216293335, 1.925963033500011e-08),
    coefficients=(-0.7213475108146667, 0.48091456294059753, -0.3607686161994934, 0.2719758450984955),
    exponent=(1.0, 0.0),
)

# |error| / log10(1 + f): 2.8e-9
LOG10_TABLE_F32 = LogTable(
    inverses=(
        1.0,
        0.9354235529899597,
        0.8676698207855225,
        0.8300961852073669,
        0.7817198634147644,
        0.7432317733764648,
        0.709823727607727,
        0.6888176202774048,
        1.3040993213653564,
        1.2608908414840698,
        1.207688570022583,
        1.1592943668365479,
        1.127915620803833,
        1.0751365423202515,
        1.0412688255310059,
        1.0,
    ),
    values=(
        0.0,
        0.02899169921875,
        0.0616455078125,
        0.08087158203125,
        0.1069488525390625,
        0.128875732421875,
        0.1488494873046875,
        0.161895751953125,
        -0.1153106689453125,
        -0.100677490234375,
        -0.0819549560546875,
        -0.0641937255859375,
        -0.052276611328125,
        -0.031463623046875,
        -0.0175628662109375,
        0.0,
    ),
    slope=(0.4342944920063019, -1.0103049952192578e-08),
    coefficients=(-0.21714724600315094, 0.14476968348026276, -0.10860013216733932, 0.08184729516506195),
    exponent=(0.301025390625, 4.605039066518657e-06),
)
