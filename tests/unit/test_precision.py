"""How far a precision moves the target from fp32: measured, recorded, and shown in the notes of a run."""

from specviz.checks.precision_distance import measure
from specviz.engine.model_store import STORE
from specviz.loader.pairs import EMBEDDED, find_pair
from specviz.models import precision


def test_the_distance_of_bf16_from_fp32_is_small_and_of_fp32_from_itself_nothing(at_embedded_home):
    source = find_pair(EMBEDDED).target
    reference, other = STORE.open(source, "cpu", "fp32"), STORE.open(source, "cpu", "bf16")
    assert measure(reference, reference, 1).total_variation == 0
    found = measure(reference, other, 2)
    assert found.precision == "bf16" and 0 < found.total_variation < 0.05 < 0.95 < found.same_likeliest <= 1
    assert found.total_variation <= found.p90 <= found.worst


def test_a_run_in_another_precision_shows_its_recorded_distance():
    for name in find_pair(EMBEDDED).target.on_cpu:
        known = precision.recorded()[name]
        assert known.precision == name and known.total_variation < 0.05
        assert f"{known.total_variation:.1g}" in precision.sentence(EMBEDDED, name, "cpu")
        assert precision.sentence("toy", name, "cpu") == ""
    assert precision.sentence(EMBEDDED, "fp32", "cpu") == ""
