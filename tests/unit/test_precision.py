"""How far a precision moves the target from fp32: measured, recorded, and told where a run shows its notes."""

from types import SimpleNamespace

from specviz.checks import precision as distance
from specviz.engine.run import STORE
from specviz.loader.pairs import EMBEDDED, find_pair


def test_the_distance_of_bf16_from_fp32_is_small_and_of_fp32_from_itself_nothing(at_embedded_home):
    source = find_pair(EMBEDDED).target
    reference, other = STORE.open(source, "cpu", "fp32"), STORE.open(source, "cpu", "bf16")
    assert distance.measure(reference, reference, 1).total_variation == 0
    found = distance.measure(reference, other, 2)
    assert found.precision == "bf16" and 0 < found.total_variation < 0.05 < 0.95 < found.same_likeliest <= 1
    assert found.total_variation <= found.p90 <= found.worst


def test_a_run_in_another_precision_tells_its_recorded_distance():
    for precision in find_pair(EMBEDDED).target.on_cpu:
        opened = SimpleNamespace(precision=precision, device="cpu")
        known = distance.recorded()[precision]
        assert known.precision == precision and known.total_variation < 0.05
        assert f"{known.total_variation:.1g}" in distance.sentence(EMBEDDED, opened)
        assert distance.sentence("toy", opened) == ""
    assert distance.sentence(EMBEDDED, SimpleNamespace(precision="fp32", device="cpu")) == ""
