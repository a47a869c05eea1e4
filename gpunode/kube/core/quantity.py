"""Quantities as Kubernetes writes them: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/"""

from __future__ import annotations

import math
from decimal import Decimal

from gpunode.core.late import regex
from gpunode.core.numbers import whole

_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_PATTERN = regex(
    r"([+-]?(?:[0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40}))(?:[eE]([+-]?[0-9]{1,9})|(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]?))"
)


def quantity(value: str | int) -> int:
    """The number, rounded up as Kubernetes does; 0 for what is none.

    >>> quantity("8"), quantity("1k"), quantity("2Ki"), quantity("1e3"), quantity("500m"), quantity(3)
    (8, 1000, 2048, 1000, 1, 3)
    """
    found = _PATTERN.fullmatch(str(value).strip())
    if not found:
        return 0
    number, exponent, suffix = Decimal(found[1]), found[2], found[3] or ""
    if exponent:
        number = number.scaleb(max(-30, min(30, (-1 if exponent[0] == "-" else 1) * whole(exponent.lstrip("+-")))))
    elif suffix in _BINARY:
        number *= 1 << _BINARY[suffix]
    else:
        number = number.scaleb(_DECIMAL[suffix])
    return math.ceil(number)
