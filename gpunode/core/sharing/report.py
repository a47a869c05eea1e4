"""The MIG profiles of products as a table."""

from __future__ import annotations

from collections.abc import Sequence

from gpunode.core.sharing.mig import Product


def products_table(products: Sequence[Product]) -> str:
    """The profiles of each product, a line each."""
    return "\n".join(_product_lines(product) for product in products)


def _product_lines(product: Product) -> str:
    mode = "kept over a reboot" if product.mode == "kept" else "lost at a reboot"
    lines = [
        f"{product.name}: {', '.join(product.ids)}; driver {product.driver} or later; MIG mode {mode}",
        f"  {'profile':<16}{'id':>3}{'at most':>9}{'compute':>9}{'memory':>8}{'usable':>11}  starts at",
    ]
    for p in product.profiles:
        usable = f"{p.usable_gib:.2f} GiB" if p.gib is not None else f"~{p.usable_gib:.0f} GiB"
        starts = " ".join(map(str, p.starts)) if product.placed else "the driver's choice"
        since = f" (driver {p.since} or later)" if p.since else ""
        lines.append(
            f"  {p.name:<16}{p.id if p.id >= 0 else '-':>3}{p.most:>9}{p.compute:>7}/{product.compute}"
            f"{f'{p.memory}/{product.memory}':>8}{usable:>11}  {starts}{since}"
        )
    lines += [f"  note: {product.note}"] if product.note else []
    return "\n".join([*lines, f"  source: {product.source}"]) + "\n"
