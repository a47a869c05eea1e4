"""A GPU by its name or PCI id: which product of mig.toml is meant, and what is said where none or several are."""

from __future__ import annotations

import pytest

from gpunode.core.errors import GpunodeError, InputError, RefusedError
from gpunode.core.sharing.mig import Product, find_product, product_of
from gpunode.edge.load import load_knowledge, load_mig

PRODUCTS, KNOWLEDGE = load_mig(), load_knowledge()

# as people write it, or nvidia-smi says it → the product
MEANT = {
    "NVIDIA A100-SXM4-40GB": "A100/A800 40GB",
    "a100 80gb": "A100/A800 80GB",
    "A100 80 GB": "A100/A800 80GB",
    "NVIDIA A100 80GB PCIe": "A100/A800 80GB",
    "A30": "A30 24GB",
    "NVIDIA H100 80GB HBM3": "H100/H800 80GB",
    "H100 PCIe": "H100/H800 80GB",
    "NVIDIA H100": "H100/H800 94GB",
    "H100 NVL": "H100/H800 94GB",
    "NVIDIA GH200 480GB": "H100/GH200/H20 96GB",
    "GH200 480GB": "H100/GH200/H20 96GB",
    "NVIDIA GH200 144G HBM3e": "GH200 144GB",
    "H200": "H200 141GB",
    "B200": "B200 180GB",
    "NVIDIA GB200": "GB200 186GB",
    "RTX PRO 6000": "RTX PRO 6000 Blackwell 96GB",
    "10de:20b2": "A100/A800 80GB",
    "20B2": "A100/A800 80GB",
}
NOT_MEANT = [
    ("A100", InputError, "GPU 'A100' is the name of 2 products"),
    ("H100", InputError, "GPU 'H100' is the name of 3 products"),
    ("GH200", InputError, "GPU 'GH200' is the name of 2 products"),
    ("A1000X", InputError, "GPU 'A1000X'"),
    ("10de:ffff", RefusedError, "10de:ffff"),
    ("Tesla T4", RefusedError, "Tesla T4 (10de:1eb8) has no MIG"),
    ("L40S", RefusedError, "NVIDIA L40S (10de:26b9) has no MIG"),
]


@pytest.mark.parametrize("text", MEANT)
def test_a_name_means_its_product(text: str) -> None:
    assert find_product(text, PRODUCTS, KNOWLEDGE).name == MEANT[text]


@pytest.mark.parametrize("product", PRODUCTS, ids=lambda product: product.name)
def test_the_whole_name_and_the_id_of_every_gpu_mean_its_product(product: Product) -> None:
    first = next(p for p in PRODUCTS if set(p.ids) & set(product.ids))  # of two sizes
    names = [model.name for pci_id in product.ids if (model := KNOWLEDGE.gpu(pci_id))]
    assert {find_product(text, PRODUCTS, KNOWLEDGE) for text in (*names, *product.ids)} == {first}
    assert {find_product(text, PRODUCTS, KNOWLEDGE) for text in (*product.names, product.name)} == {product}


def test_the_memory_that_the_driver_names_tells_two_sizes_of_one_id_apart() -> None:
    sizes = {mib: product_of("10de:2941", PRODUCTS, KNOWLEDGE, memory_mib=mib).name for mib in (189471, 180000, 177500)}
    assert sizes == {189471: "GB200 189GB", 180000: "GB200 189GB", 177500: "GB200 186GB"}


@pytest.mark.parametrize(("text", "kind", "what"), NOT_MEANT, ids=[text for text, _, _ in NOT_MEANT])
def test_a_name_of_none_or_several_is_reported(text: str, kind: type[GpunodeError], what: str) -> None:
    with pytest.raises(kind) as caught:
        find_product(text, PRODUCTS, KNOWLEDGE)
    assert what in str(caught.value)
