"""The one checker of shapes."""

import pytest
import torch

from heed.errors import Refused, ShapeError
from heed.shapes import LARGEST, check, check_groups, check_width, whole


def test_letters_are_bound() -> None:
    sizes = check(k=(torch.zeros(2, 1, 7, 5), "B G S D"), v=(torch.zeros(2, 1, 7, 4), "B G S R"))
    assert sizes == {"B": 2, "G": 1, "S": 7, "D": 5, "R": 4}


def test_a_disagreement_names_the_letter_and_both_shapes() -> None:
    with pytest.raises(ShapeError) as told:
        check(
            k=(torch.zeros(2, 4, 17, 32), "B H S D"),
            v=(torch.zeros(2, 4, 16, 32), "B H S R"),
        )
    assert str(told.value) == (
        "k and v disagree on S\n  k: B=2 H=4 S=17 D=32\n  v: B=2 H=4 S=16 R=32"
    )


def test_the_first_tensor_with_a_letter_is_named() -> None:
    with pytest.raises(ShapeError, match="a and c disagree on X"):
        check(a=(torch.zeros(2), "X"), b=(torch.zeros(3), "Y"), c=(torch.zeros(4, 3), "X Y"))


def test_a_letter_twice_in_one_pattern_means_a_square() -> None:
    assert check(m=(torch.zeros(3, 3), "N N")) == {"N": 3}
    with pytest.raises(ShapeError, match="m and m disagree on N"):
        check(m=(torch.zeros(3, 4), "N N"))


def test_an_axis_may_have_length_zero() -> None:
    assert check(k=(torch.zeros(2, 0), "B S")) == {"B": 2, "S": 0}
    with pytest.raises(ShapeError, match="disagree on S"):
        check(k=(torch.zeros(2, 0), "B S"), v=(torch.zeros(2, 1), "B S"))


@pytest.mark.parametrize("shape", [(), (2,), (2, 3, 4, 5)])
def test_the_wrong_number_of_axes_is_reported_with_the_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError) as told:
        check(query=(torch.zeros(shape), "B T M"))
    assert str(told.value) == f"query must have 3 axes, B T M; it has {len(shape)}: {shape}"


@pytest.mark.parametrize(("H", "G"), [(4, 4), (4, 2), (4, 1), (1, 1)])
def test_heads_are_shared_evenly_among_groups(H: int, G: int) -> None:
    check_groups(torch.zeros(2, H, 3, 5), torch.zeros(2, G, 3, 5))


@pytest.mark.parametrize(("H", "G"), [(4, 3), (2, 4), (1, 2), (3, 0)])
def test_heads_that_cannot_be_shared_evenly_are_refused(H: int, G: int) -> None:
    with pytest.raises(ShapeError, match=f"H={H} heads, the keys G={G} groups"):
        check_groups(torch.zeros(2, H, 3, 5), torch.zeros(2, G, 3, 5))


ODD = (-1, 2.0, True, "3", None, 2**31, 2**70, -(10**5000), 10**5000)


@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
def test_what_is_no_such_whole_number_is_refused_in_a_short_line(value: object) -> None:
    with pytest.raises(Refused, match=r"^block is a whole number") as told:
        whole("block", value, 0)
    assert len(str(told.value)) < 80


def test_whole_numbers_within_the_limits_are_taken() -> None:
    assert whole("block", 2**31 - 1, 0) == LARGEST
    assert whole("limit", 2**40, 1, 2**50) == 2**40


def test_a_known_width_is_checked() -> None:
    check_width("keys", torch.zeros(2, 3, 5), 5)
    check_width("keys", torch.zeros(2, 3, 5), None)
    with pytest.raises(ShapeError) as told:
        check_width("keys", torch.zeros(2, 3, 5), 4)
    assert str(told.value) == "keys are 5 wide, (2, 3, 5); this attention was built for 4"
